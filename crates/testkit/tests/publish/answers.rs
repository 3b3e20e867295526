//! People answer by webhook: a portal of theirs signs what they say, and a run goes on.

use standardwebhooks::Webhook as Signer;
use steadfast::{
    Answer, ApprovalRequest, Approved, Builder, Contract, Cx, Error, ListEvents, Result, Steadfast,
};
use steadfast_connectors::Answers;
use steadfast_testkit::db::TestDb;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::receiver::read;
use super::webhooks::{OTHER, SECRET, kept};
use super::{Greeting, to, until};

async fn send_proposal(cx: Cx, greeting: Greeting) -> Result<Vec<String>> {
    let request = ApprovalRequest::new("send_proposal", format!("write to {}", greeting.to));
    let yes: Approved = cx.approval(request.among(["lead:*"])).await?;
    Ok(yes.by)
}

fn fabric(url: &str) -> Builder {
    Steadfast::open(url).command(send_proposal, Contract::new())
}

/// A route of an application: what it gets is an answer, or a status that says why it is none.
async fn serve(listener: TcpListener, fabric: Steadfast, answers: Answers) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let request = read(&mut stream).await;
        let headers = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let heard: Result<()> = async {
            let answer: Answer = answers.read(headers, request.body.as_bytes())?;
            fabric.answer(&answer).await.map(|_| ())
        }
        .await;
        let said = heard.map_or_else(|error: Error| error.code().to_owned(), |()| "ok".to_owned());
        let length = said.len();
        let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{said}");
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
    }
}

/// Sends a body, signed with a secret at a time; gives what was said to it.
async fn post(place: &str, secret: &str, at: i64, body: &str) -> String {
    let signature = Signer::new(secret).unwrap().sign("msg_1", at, body.as_bytes()).unwrap();
    let mut stream = TcpStream::connect(place).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nwebhook-id: msg_1\r\nwebhook-timestamp: {at}\r\n\
         webhook-signature: {signature}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    said.rsplit("\r\n").next().unwrap().to_owned()
}

/// R115, X11: what a person was told is enough to answer by; nothing else moves the question.
#[tokio::test(flavor = "multi_thread")]
async fn r115_a_signed_answer_to_what_was_shown_lets_the_run_go_on() {
    let db = TestDb::sqlite();
    let asking = fabric(&db.url).start().await.unwrap();
    let command = asking.submit(send_proposal, to("ann")).requested_by("user:asker").await.unwrap();
    let told = async || {
        let event_type = Some("approval.requested".to_owned());
        asking.events(ListEvents { event_type, limit: 10, ..Default::default() }).await.unwrap()
    };
    until("people are told", async || !told().await.is_empty()).await;
    let shown: serde_json::Value = serde_json::from_str(&told().await[0].payload).unwrap();
    // The answer comes to another process than the one that asked, which is gone.
    asking.shutdown().await;
    let fabric = fabric(&db.url).start().await.unwrap();
    let (_file, secret) = kept(SECRET);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let answers = Answers::signed_with(&secret).unwrap();
    tokio::spawn(serve(listener, fabric.clone(), answers));
    let says = |approver: &str, hash: &serde_json::Value, vote: &str| {
        serde_json::json!({
            "approval_id": shown["approval_id"], "digest": hash, "approver": approver,
            "vote": vote, "reason": "looks right",
        })
        .to_string()
    };
    let (now, hash) =
        (steadfast::Env::now(&steadfast::TokioEnv::current()).as_millis() / 1000, &shown["digest"]);
    let yes = says("lead:mia", hash, "approved");
    assert_eq!(post(&place, OTHER, now, &yes).await, "SF-0908", "by somebody else");
    assert_eq!(post(&place, SECRET, now - 3600, &yes).await, "SF-0908", "of an hour ago");
    let other = serde_json::json!("something else");
    let seen = says("lead:mia", &other, "approved");
    assert_eq!(post(&place, SECRET, now, &seen).await, "SF-0819", "to another question");
    let unsure = says("lead:mia", hash, "perhaps");
    assert_eq!(post(&place, SECRET, now, &unsure).await, "SF-0909");
    let own = says("user:asker", hash, "approved");
    assert_eq!(post(&place, SECRET, now, &own).await, "SF-0816", "not for oneself");
    let stranger = says("user:bob", hash, "approved");
    assert_eq!(post(&place, SECRET, now, &stranger).await, "SF-0817", "not asked");
    assert!(fabric.pending_approvals().await.unwrap()[0].votes.is_empty());
    assert_eq!(post(&place, SECRET, now, &yes).await, "ok");
    assert_eq!(post(&place, SECRET, now, &yes).await, "ok", "the same again");
    let by = fabric.command::<Vec<String>>(command.id()).result().await.unwrap();
    assert_eq!(by, ["lead:mia"]);
    fabric.shutdown().await;
}
