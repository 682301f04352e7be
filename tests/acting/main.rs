//! Acting against real commands and real TLS servers: stand-ins below a temporary root, sockets on the loopback.

mod confirm;
mod http;
mod listed;
mod probe;
mod ready;
mod restart;
mod stand_in;
mod tls;
