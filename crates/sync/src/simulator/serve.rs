//! One exchange with the simulator.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Answer, PAGER, Seen, Simulator};

/// What was asked.
struct Asked {
    operation: String,
    query: BTreeMap<String, String>,
    /// By their names in small letters.
    headers: BTreeMap<String, String>,
    body: String,
}

impl Asked {
    /// The trace it belongs to.
    fn trace(&self) -> String {
        let trace = self.headers.get("traceparent").and_then(|value| value.split('-').nth(1));
        trace.unwrap_or_default().to_owned()
    }
}

impl Simulator {
    pub(super) async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(asked) = read(&mut stream).await? else { return Ok(()) };
        let shape = self.lock().shape;
        let (date, page) = (shape.date(&asked.query), shape.page(&asked.query));
        let (answer, number) = self.decide(&asked, &date, page);
        if answer == Some(Answer::Held)
            && let Ok(permit) = self.0.released.acquire().await
        {
            permit.forget();
        }
        let (status, extra, body) = match answer {
            Some(Answer::Hangup) => return Ok(()),
            Some(Answer::Status(status)) => (status, String::new(), "{}".to_owned()),
            Some(Answer::Later(seconds)) => {
                (429, format!("retry-after: {seconds}\r\n"), "{}".to_owned())
            }
            Some(Answer::Held) | None => {
                let size = self.lock().page_rows;
                let body = shape.answer(&date, &self.day(&date), page, size);
                (200, String::new(), body.to_string())
            }
        };
        self.lock().log[number].status = status;
        let head = format!(
            "HTTP/1.1 {status} simulated\r\ncontent-type: application/json\r\n{extra}\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await
    }

    /// What to answer instead of the page, if anything; and the request's place in the log.
    fn decide(&self, asked: &Asked, date: &str, page: u64) -> (Option<Answer>, usize) {
        let mut state = self.lock();
        let number = state.log.len();
        let (operation, date) = (asked.operation.clone(), date.to_owned());
        let (trace, body) = (asked.trace(), asked.body.clone());
        state.log.push(Seen { operation, date: date.clone(), page, status: 0, trace, body });
        let shape = state.shape;
        match asked.operation.as_str() {
            PAGER => return (Some(Answer::Status(202)), number),
            operation if operation != shape.operation() => {
                return (Some(Answer::Status(405)), number);
            }
            _ => {}
        }
        if state.token.is_some() && state.token.as_deref() != shape.token(&asked.headers) {
            return (Some(Answer::Status(401)), number);
        }
        let asked_before = state.log.iter().filter(|seen| seen.date == date).count() as u64 - 1;
        if let Some(twist) = state.twists.get_mut(&date)
            && twist.changes_after == Some(asked_before)
        {
            twist.revision += 1;
        }
        let next = [page, 0].into_iter().find_map(|page| {
            state.script.get_mut(&(date.clone(), page)).and_then(|script| script.pop_front())
        });
        (next, number)
    }
}

/// A request, whole: nobody is cut off while he talks.
async fn read(stream: &mut TcpStream) -> std::io::Result<Option<Asked>> {
    let (mut bytes, mut part) = (Vec::new(), [0; 2048]);
    loop {
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n");
        if let Some(head) = head
            && bytes.len() >= head + 4 + body_bytes(&bytes[..head])
        {
            break;
        }
        let n = stream.read(&mut part).await?;
        if n == 0 || bytes.len() > 64 * 1024 {
            return Ok(None);
        }
        bytes.extend_from_slice(&part[..n]);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    Ok(Some(Asked {
        operation: format!("{method} {path}"),
        query: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        headers: headers.collect(),
        body: body.to_owned(),
    }))
}

/// How long a head says that the body is.
fn body_bytes(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head);
    let length = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    length.unwrap_or(0)
}
