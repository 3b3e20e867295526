//! Statistics for a database that is just filling.
//!
//! The server counts what tables hold now and then; a new database has been counted never, and its
//! plans are guesses (every workspace a two-hundredth of the table, say). So they are counted
//! early, each time the tables have grown fourfold, until the server's own counting has taken over.
//! How large they were at the last count is known to the server, so of many processes one counts.

use std::sync::Arc;
use std::time::Duration;

use super::connector::Connector;
use crate::backend::random;
use crate::session::Pool;

/// How often the sizes are looked at, times 0.5 to 1.5, and how often that may lead to counting.
const EVERY: Duration = Duration::from_secs(2);
const COUNTS: u32 = 8;
/// A table of so many pages, half a gigabyte, is left to the server.
const LARGE: i64 = 65_536;

/// Counts until the tables are large. Ends by itself.
pub(super) async fn keep(pool: Arc<Pool<Connector>>) {
    let mut counts = 0;
    while counts < COUNTS {
        tokio::time::sleep(EVERY.mul_f64(0.5 + random())).await;
        let Ok(held) = pool.take().await else {
            continue;
        };
        match held.session.pages_of_runs().await {
            // Without the right to count, or without the table, there is nothing to be done here.
            Err(_) => return,
            Ok((pages, _)) if pages > LARGE => return,
            Ok((pages, counted)) if pages > 4 * counted => {
                if held.session.count().await.is_err() {
                    return;
                }
                counts += 1;
            }
            Ok(_) => {}
        }
        pool.put_back(held);
    }
}
