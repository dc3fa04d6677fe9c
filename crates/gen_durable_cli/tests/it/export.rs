//! Tests of `durable export`.

use serde_json::Value;

use super::{TestSchema, output::sql, stderr, stdout};

#[tokio::test]
async fn durable_export_writes_all_pages_as_json_lines_or_csv() {
    let (db, client) = TestSchema::migrated().await;
    sql(
        &client,
        "insert into S.instances (machine, step, state, last_error, tenant)
         select 'order', 'reserve', '1', case g when 450 then 'a \"b\", c' end, case when g > 1 then 'acme' else '' end
         from generate_series(1, 450) g",
    )
    .await;
    let lines = stdout(&db.run(&["export"]));
    let ids: Vec<String> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let expected: Vec<String> = (1..=450).rev().map(|id: i32| id.to_string()).collect();
    assert_eq!(ids, expected);
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(first, db.listed(&["--limit", "1"])[0], "one shape");

    let file = std::env::temp_dir().join(format!(
        "durable-export-{}-{}.csv",
        std::process::id(),
        db.schema
    ));
    let path = file.to_str().unwrap();
    let options = [
        "export", "--tenant", "acme", "--format", "csv", "--output", path,
    ];
    let output = db.run(&options);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("449 instances exported"),
        "{}",
        stderr(&output)
    );
    assert_eq!(stdout(&output), "");
    let csv = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let mut rows = csv.lines();
    assert!(
        rows.next()
            .unwrap()
            .starts_with("id,tenant,machine,version,step,status")
    );
    let row = rows.next().unwrap();
    assert!(
        row.starts_with("450,acme,order,1,reserve,runnable,default,0,0,"),
        "{row}"
    );
    assert!(row.ends_with(",\"a \"\"b\"\", c\","), "{row}");
    assert_eq!(rows.count(), 448);
    let both = db.run(&["export", "--json", "--format", "csv"]);
    assert_eq!(both.status.code(), Some(2));
}
