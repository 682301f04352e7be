# shellcheck shell=bash
# Functions that MicroK8s' wrappers and hooks share, as far as a guard of its certificates meets them.

use_snap_env() {
  export PATH="$SNAP/usr/sbin:$SNAP/usr/bin:$SNAP/sbin:$SNAP/bin:$PATH"
  export LD_LIBRARY_PATH="$SNAP/lib"
}

# Every address that the host has.
get_ips() {
  hostname -I
}

# Prints 1 when it made a certificate, else 0.
produce_certs() {
  "$SNAP/bin/certificates"
}
