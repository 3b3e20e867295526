//! `steadfast policy test`: chains from a file over commands from a file and over those of a store.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

use serde_json::{Value, json};
use steadfast::connector::{Connector, Inbound, Operation, Outbound};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::{Budget, Contract, Cx, Effect, EffectType, Governance, Result, Steadfast};

fn steadfast(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_steadfast")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// What a file of policies makes of a command: exit code, and each decision as JSON.
    fn test(&self, policies: &str, command: &Value) -> (i32, Vec<Value>) {
        let policies = self.write("policies.toml", policies);
        let command = self.write("command.json", &command.to_string());
        let args = ["policy", "test", &policies, "--command", &command, "-o", "json"];
        let (code, out, err) = steadfast(&args);
        assert!(code == 0 || code == 1 && err.is_empty(), "{out}{err}");
        (code, decisions(&out))
    }
}

fn decisions(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What was said of an act by a stage.
fn said<'a>(decisions: &'a [Value], act: &str, stage: &str) -> (&'a str, &'a str) {
    let found = decisions.iter().find(|d| d["act"] == act && d["stage"] == stage);
    let found = found.unwrap_or_else(|| panic!("{stage} was not asked of {act}: {decisions:#?}"));
    (found["ruling"].as_str().unwrap(), found["rule"].as_str().unwrap())
}

/// R11, R12, R13
#[test]
fn r011_a_chain_is_tried_on_a_command_without_anything_being_done() {
    let folder = Folder::new();
    let policies = folder.write(
        "policies.toml",
        "[[grants]]\nprincipal = \"system:scheduler\"\nallow = [\"warehouse.write\"]\n\
         [commands.sync_vendor_sales]\npolicies = [\"permission\", \"cost\"]\n\
         requires = [\"warehouse.write/{vendor_name}\"]\n",
    );
    let command = |who: &str| {
        let text = format!(
            "{{\"type\":\"sync_vendor_sales\",\"requested_by\":\"{who}\",\
             \"payload\":{{\"vendor_name\":\"acme_sales\"}}}}"
        );
        folder.write(&format!("{who}.json"), &text)
    };
    let (code, out, err) =
        steadfast(&["policy", "test", &policies, "--command", &command("system:scheduler")]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("permission") && out.contains("cost"), "{out}");
    let (code, out, _) =
        steadfast(&["policy", "test", &policies, "--command", &command("user:nobody")]);
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("lacks \"warehouse.write/acme_sales\""), "{out}");
    let wrong = folder.write("wrong.toml", "[commands.x]\npolicy = [\"permission\"]\n");
    let (code, _, err) =
        steadfast(&["policy", "test", &wrong, "--command", &command("user:nobody")]);
    assert_ne!(code, 0);
    assert!(err.contains("unknown field `policy`"), "{err}");
}

const SELL: &str = r#"
[[connectors]]
name = "crm"
reads = ["GET /deals/{}"]
writes = ["POST /deals", "POST /mails"]

[commands.sell]
policies = ["permission", "connector_scope", "external_sharing"]
calls = ["crm GET /deals/7", "crm POST /deals", "crm POST /mails"]

[commands.sell.effects."deal.create"]
classes = { approval = "A0", reversibility = "R1", sensitivity = "S1" }
via = "crm POST /deals"

[commands.sell.effects."mail.send"]
classes = { approval = "A1", reversibility = "R2", sensitivity = "S2" }
via = "crm POST /mails"

[commands.sell.effects."nobody.classed"]
"#;

/// X6, X19, R14: each effect and call that the contract declares is tried, and what a command says
/// it does instead.
#[test]
fn x06_a_chain_is_tried_on_each_effect_and_call() {
    let folder = Folder::new();
    let mut command =
        json!({ "type": "sell", "requested_by": "user:1", "payload": { "customer": 7 } });
    let (code, declared) = folder.test(SELL, &command);
    assert_eq!(code, 1, "one effect has no classes");
    assert_eq!(said(&declared, "admit", "permission").0, "allow");
    assert_eq!(said(&declared, "effect deal.create", "external_sharing").0, "allow");
    let asked = said(&declared, "effect mail.send", "external_sharing");
    assert_eq!(asked, ("require_approval", "confidential_leaves"));
    assert_eq!(said(&declared, "effect mail.send", "approval_requirement").1, "a1_team");
    let denied = said(&declared, "effect nobody.classed", "approval_requirement");
    assert_eq!(denied, ("deny", "unclassified"));
    assert_eq!(said(&declared, "call crm GET /deals/7", "connector_scope").0, "allow");

    command["effects"] = json!([{ "type": "deal.create", "payload": {} }]);
    command["calls"] = json!([{ "operation": "crm GET /deals/7" }]);
    let (code, said_so) = folder.test(SELL, &command);
    assert_eq!(code, 0, "{said_so:#?}");
    for (effect, calls, act, rule) in [
        (
            json!({ "type": "deal.delete", "payload": {} }),
            json!([]),
            "effect deal.delete",
            "undeclared_effect",
        ),
        (
            json!({ "type": "deal.create", "payload": {}, "via": "crm PUT /deals" }),
            json!([]),
            "effect deal.create",
            "out_of_scope",
        ),
        (
            json!({ "type": "deal.create", "payload": {} }),
            json!([{ "operation": "crm POST /mails" }]),
            "call crm POST /mails",
            "write_without_effect",
        ),
        (
            json!({ "type": "deal.create", "payload": {} }),
            json!([{ "operation": "crm GET /users" }]),
            "call crm GET /users",
            "out_of_scope",
        ),
    ] {
        command["effects"] = json!([effect]);
        command["calls"] = calls;
        let (code, tried) = folder.test(SELL, &command);
        assert_eq!(code, 1, "{tried:#?}");
        let denial = tried.iter().find(|d| d["ruling"] == "deny").unwrap();
        assert_eq!((&denial["act"], &denial["rule"]), (&json!(act), &json!(rule)));
    }
}

/// A CRM that takes everything.
struct Crm(Vec<Operation>);

impl Connector for Crm {
    fn name(&self) -> &str {
        "crm"
    }
    fn scope(&self) -> &[Operation] {
        &self.0
    }
    fn send<'a>(
        &'a self,
        request: &'a Outbound,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Inbound>> + Send + 'a>> {
        Box::pin(async { Ok(Inbound::new(json!({}), request.operation.clone(), "200")) })
    }
}

async fn sell(cx: Cx, customer: u32) -> Result<()> {
    let look = Outbound::new("GET /deals/7", json!({}));
    let _: Value = cx.call("look", "crm", look).await?;
    let deal = Outbound::new("POST /deals", json!({ "customer": customer, "amount": 5000 }));
    let _: Value = cx.effect_via(Effect::of("deal.create"), "crm", deal).await?;
    Ok(())
}

/// A store with a sale to customer 7, and a type that no file knows of.
fn sold(folder: &Folder) -> String {
    let store = format!("sqlite://{}", folder.0.path().join("s.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let harmless = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
        let deal = EffectType::new("deal.create").classes(harmless).not_undone("test");
        let scope = [Operation::read("GET /deals/{}"), Operation::write("POST /deals").keyed()];
        let budget = Budget::per_day("crm", 50);
        let fabric = Steadfast::open(&store)
            .command(sell, Contract::new().effect(deal).policies(["cost"]))
            .govern(Governance::new().budget(budget))
            .command(nothing, Contract::new())
            .connector(Crm(scope.into()))
            .start()
            .await
            .unwrap();
        fabric.submit(sell, 7).requested_by("user:1").await.unwrap().result().await.unwrap();
        let other = fabric.submit(nothing, 1).requested_by("user:1").await.unwrap();
        other.result().await.unwrap();
        fabric.shutdown().await;
    });
    store
}

async fn nothing(_: Cx, _: u32) -> Result<()> {
    Ok(())
}

/// R107: what was really done is judged by the policies of a file, and the store stays as it was.
#[test]
fn r107_a_chain_is_tried_on_past_commands() {
    let folder = Folder::new();
    let store = sold(&folder);
    let events = || steadfast(&["event", "list", "--store", &store, "-o", "ids"]).1;
    let before = events();
    let policies = folder.write("policies.toml", SELL);
    let test = |more: &[&str]| {
        let fixed = ["policy", "test", &policies, "--store", &store, "-o", "json", "--past"];
        let (code, out, err) = steadfast(&[&fixed, more].concat());
        (code, decisions(&out), err)
    };
    let (code, judged, err) = test(&[]);
    assert_eq!(code, 0, "{judged:#?}");
    assert!(err.contains("1 commands are of types"), "{err}");
    for act in ["admit", "effect deal.create", "call crm GET /deals/7"] {
        assert_eq!(said(&judged, act, "permission").0, "allow");
    }
    assert_eq!(test(&["sell", "--status", "failed"]).1.len(), 0, "it has not failed");
    assert_eq!(test(&["sell", "--status", "succeeded", "--limit", "1"]).1.len(), judged.len());
    let (code, _, err) = test(&["nothing"]);
    assert!(code != 0 && err.contains("no chain for \"nothing\""), "{err}");
    folder.write("policies.toml", &SELL.replace("\"POST /deals\", \"POST /mails\"", ""));
    let (code, judged, _) = test(&["sell"]);
    assert_eq!(code, 1);
    assert_eq!(said(&judged, "effect deal.create", "connector_scope").1, "out_of_scope");
    assert_eq!(events(), before, "trying is not doing");
}

/// R17
#[test]
fn r017_what_is_spent_of_budgets_is_listed() {
    let folder = Folder::new();
    let store = sold(&folder);
    let list = |more: &[&str]| {
        let fixed = ["policy", "budgets", "--store", &store, "-o", "json"];
        let (code, out, err) = steadfast(&[&fixed, more].concat());
        assert_eq!(code, 0, "{out}{err}");
        decisions(&out)
    };
    let budgets = list(&[]);
    assert_eq!((budgets.len(), &budgets[0]["spent"]), (1, &json!(2)), "{budgets:?}");
    let name = budgets[0]["budget"].as_str().unwrap();
    assert!(name.starts_with("cost:calls:*:crm:"), "{name}");
    assert!(list(&["--after", name]).is_empty());
}

const CEDAR: &str = r#"
[[cedar]]
stage = "permission"
policies = "permission.cedar"
payload = "payload.cedarschema"

[[connectors]]
name = "crm"
reads = ["GET /deals/{}"]
writes = ["POST /deals"]

[commands.sell]
policies = ["permission"]

[commands.sell.effects."deal.create"]
classes = { approval = "A0", reversibility = "R1", sensitivity = "S1" }
"#;

/// Without Cedar, a stage in it is refused, not left out.
#[cfg(not(feature = "cedar"))]
#[test]
fn a_stage_in_cedar_is_not_left_out() {
    let folder = Folder::new();
    let policies = folder.write("policies.toml", CEDAR);
    let command = json!({ "type": "sell", "requested_by": "user:1", "payload": 7 });
    let command = folder.write("command.json", &command.to_string());
    let (code, out, err) = steadfast(&["policy", "test", &policies, "--command", &command]);
    assert!(code == 1 && out.is_empty() && err.contains("--features cedar"), "{out}{err}");
}

/// R11, R107: policies in Cedar over what was really done, with their obligations.
#[cfg(feature = "cedar")]
#[test]
fn r107_stages_in_cedar_are_tried_on_past_commands() {
    let folder = Folder::new();
    let store = sold(&folder);
    let policies = folder.write("policies.toml", CEDAR);
    folder.write("payload.cedarschema", "type Payload = { amount?: Long };");
    let cedar = |text: &str| {
        folder.write("permission.cedar", text);
        let args = ["policy", "test", &policies, "--store", &store, "-o", "json", "--past", "sell"];
        let (code, out, err) = steadfast(&args);
        (code, decisions(&out), err)
    };
    let (code, judged, _) = cedar(
        "@rule(\"anybody\") permit (principal, action in [Action::\"admit\", Action::\"call\"], \
         resource);\n\
         @rule(\"large\") @obligation(\"approval\") @approvers(\"2\")\n\
         permit (principal, action == Action::\"effect\", resource == Operation::\"deal.create\")\n\
         when { context.payload has amount && context.payload.amount > 1000 };",
    );
    assert_eq!(code, 0, "{judged:#?}");
    assert_eq!(said(&judged, "admit", "permission"), ("allow", "anybody"));
    assert_eq!(said(&judged, "call crm GET /deals/7", "permission"), ("allow", "anybody"));
    assert_eq!(said(&judged, "effect deal.create", "permission"), ("escalate", "large"));
    let (code, judged, _) = cedar("permit (principal, action == Action::\"admit\", resource);");
    assert_eq!(
        (code, said(&judged, "effect deal.create", "permission")),
        (1, ("deny", "no_permit"))
    );
    let (code, _, err) = cedar("permit (principal, action, resource) when { context.amuont > 1 };");
    assert!(code == 1 && err.contains("SF-0821") && err.contains("permission.cedar"), "{err}");
}
