# shellcheck shell=bash
# Overrides two functions of MicroK8s' actions/common/utils.sh: source this file at its end.

# The node's own addresses in one line, or "none".
get_ips() {
  "${SNAP}/bin/ipguard" ips || echo none
}

# Prints 1 if the caller must restart kubelite, else 0, and nothing else; always succeeds, also under set -e.
produce_certs() {
  local restart
  ipguard_make_missing >&2 || echo "keys and CAs are not complete" >&2
  restart="$("${SNAP}/bin/ipguard" check --apply --format microk8s)" || restart=0
  if [ "${restart}" = 1 ]; then echo 1; else echo 0; fi
}

# Keys and CAs where there are none, as upstream makes them: never a key beside a CA that is there, whose own key may be
# elsewhere on purpose. Made in a folder of root's alone and moved: members of a group may put links into certs/.
ipguard_make_missing() {
  local certs="${SNAP_DATA}/certs" name subject new status=0
  ipguard_absent() { ! [ -e "${certs}/$1" ] && ! [ -L "${certs}/$1" ]; }
  ipguard_key() { "${SNAP}/openssl.wrapper" genrsa -out "${new}/$1" 2048 && mv -nT "${new}/$1" "${certs}/$1"; }
  new="$(mktemp -d "${SNAP_DATA}/.certs-XXXXXX")" || return
  for name in serviceaccount server front-proxy-client; do
    if ipguard_absent "${name}.key"; then ipguard_key "${name}.key" || status=1; fi
  done
  for subject in ca=10.152.183.1 front-proxy-ca=front-proxy-ca; do
    name="${subject%%=*}"
    if ! ipguard_absent "${name}.crt"; then continue; fi
    if ipguard_absent "${name}.key"; then ipguard_key "${name}.key" || status=1; fi
    "${SNAP}/openssl.wrapper" req -x509 -new -sha256 -nodes -days 3650 -subj "/CN=${subject#*=}" \
      -key "${certs}/${name}.key" -out "${new}/${name}.crt" &&
      mv -nT "${new}/${name}.crt" "${certs}/${name}.crt" || status=1
  done
  rm -rf "${new}"
  return "${status}"
}
