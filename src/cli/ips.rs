//! `ips`: the node's own addresses in one line, as MicroK8s' `get_ips` prints them.

use std::net::IpAddr;

use crate::cli::{CliError, Status, output};
use crate::decide::plan::Plan;
use crate::decide::verdict::Class;
use crate::one_shot::Look;

/// Prints the primary addresses. Holds do not matter: what is the node's own is so whatever may be done about it.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(look: &Look) -> Result<Status, CliError> {
    output::data(&line(&look.plan))?;
    Ok(Status::Done)
}

/// The line: node addresses first, since callers take the first word for the node's address, then the plan's order.
pub fn line(plan: &Plan) -> String {
    let mut words: Vec<IpAddr> = Vec::new();
    let primary =
        plan.addresses.iter().filter(|verdict| verdict.class == Class::Primary).map(|verdict| verdict.address);
    for address in plan.node_address.values().copied().chain(primary) {
        if !words.contains(&address) {
            words.push(address);
        }
    }
    if words.is_empty() {
        // The word that `get_ips` has for it; callers compare with it.
        return "none\n".to_owned();
    }
    words.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{node, plan};

    #[test]
    fn the_node_addresses_come_first_and_nothing_twice() {
        assert_eq!(line(&node()), "192.0.2.10 2001:db8::2 198.51.100.2 203.0.113.50\n");
    }

    #[test]
    fn nothing_is_none() {
        assert_eq!(line(&plan()), "none\n");
    }
}
