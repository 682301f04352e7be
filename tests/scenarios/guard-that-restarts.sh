#!/bin/sh
# Stands in for ipguard where the bed must notice a restart without need: it restarts the API server once.
case $1 in
    run)
        trap 'exit 0' TERM
        while [ "$1" != --root ]; do shift; done
        echo "first pass done" >&2
        "$2/usr/bin/snap" restart microk8s.daemon-kubelite
        while :; do sleep 0.05; done ;;
    explain)
        echo '{"version": 1, "addresses": [
            {"address": "192.0.2.10", "interface": "eth0", "class": "primary"},
            {"address": "192.0.2.100", "interface": "eth0", "class": "secondary"}]}' ;;
    *) exit 64 ;;
esac
