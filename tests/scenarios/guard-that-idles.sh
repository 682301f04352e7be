#!/bin/sh
# Stands in for ipguard where the bed must notice that a guard does nothing: it says that it is ready, and idles.
case $1 in
    run)
        trap 'exit 0' TERM
        echo "first pass done" >&2
        while :; do sleep 0.05; done ;;
    explain)
        echo '{"version": 1, "addresses": [{"address": "192.0.2.57", "interface": "eth0", "class": "primary"}]}' ;;
    *) exit 64 ;;
esac
