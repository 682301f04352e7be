//! A sandbox like systemd's `RestrictAddressFamilies=`: AF_NETLINK is an unknown family.
#![allow(unsafe_code, reason = "seccomp has no safe wrapper among the crates used here")]

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::libc;

/// First word of the command line that leads here; the program and its arguments follow.
pub(crate) const WORD: &str = "--without-netlink";

/// Becomes the program, without netlink.
pub(crate) fn without_netlink(command: &[String]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else { return ExitCode::from(64) };
    if let Err(error) = refuse_netlink() {
        eprintln!("seccomp: {error}");
        return ExitCode::FAILURE;
    }
    let error = Command::new(program).args(arguments).exec();
    eprintln!("{program}: {error}");
    ExitCode::FAILURE
}

fn refuse_netlink() -> std::io::Result<()> {
    let word = |value: i64| u32::try_from(value).unwrap_or(u32::MAX);
    let number = |value: libc::c_int| u32::try_from(value).unwrap_or(u32::MAX);
    // struct seccomp_data: the call's number at 0, its first argument at 16; the low half stands first.
    let load = |k: u32| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, k);
    let if_equal = |k: u32, otherwise: u8| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, otherwise, k);
    let give = |k: u32| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut filter = [
        load(0),
        if_equal(word(libc::SYS_socket), 3),
        load(16),
        if_equal(number(libc::AF_NETLINK), 1),
        give(libc::SECCOMP_RET_ERRNO | number(libc::EAFNOSUPPORT)),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let length = libc::c_ushort::try_from(filter.len()).unwrap_or_default();
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes integers only; unused arguments must be zero.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: `program` and the filter it points to live until the call returns; the kernel copies and checks them.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}
