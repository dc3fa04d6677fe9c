//! The OpenAPI schemas of the HTTP API: the properties of each object, in the form that `object`
//! reads.

/// A group of schemas: the name and the properties of each.
pub(super) type Schemas = &'static [(&'static str, &'static [&'static str])];

/// The properties of an error.
pub(super) const PROBLEM: &[&str] = &["*type", "*title", "*status: integer", "*code", "*detail"];

/// The properties of an instance in a list.
pub(super) const ROW: &[&str] = &[
    "*id",
    "*machine",
    "*version: integer",
    "*step",
    "*status",
    "*queue",
    "priority: integer",
    "tenant",
    "attempt: integer",
    "key: string?",
    "parent_id: string?",
    "last_error: string?",
    "awaits: string[]?",
    "eligible_at: time",
    "inserted_at: time",
    "updated_at: time",
    "settled_at: string?",
];

/// The further properties of an instance that is shown alone.
pub(super) const DETAILS: &[&str] = &[
    "failures: integer",
    "locked_by: string?",
    "lease_expires_at: string?",
    "claim_epoch: integer",
    "step_seq: integer",
    "step_entry_seq: integer",
    "crash_count: integer",
    "traceparent: string?",
    "deadline_at: string?",
    "deadline_step: string?",
    "parent_generation: integer?",
    "join_generation: integer",
    "join_any: boolean",
    "children_pending: integer",
    "lane: string?",
    "lane_position: integer?",
    "in_lane: boolean",
    "lane_blocks: boolean",
    "lane_head: boolean",
    "blocks_its_lane: boolean",
    "partition: string?",
    "partition_waiting: boolean",
    "state: any",
    "data: any",
    "result: any",
    "payloads_hidden: boolean",
    "ancestors: object[]",
];

/// The live numbers of the overview.
pub(super) const LIVE: Schemas = &[
    (
        "Health",
        &[
            "database",
            "schema",
            "schema_version: integer",
            "live_workers: integer",
            "now: time",
        ],
    ),
    (
        "Session",
        &[
            "*name",
            "*role",
            "*may_act: boolean",
            "title",
            "schema",
            "version",
        ],
    ),
    ("SignedOut", &["signed_out: boolean"]),
    (
        "Overview",
        &[
            "at: string?",
            "trouble: string?",
            "trouble_since: string?",
            "alerts: Alert[]",
            "instances: integer?",
            "bytes: integer?",
            "*totals: object",
            "capped: string[]",
            "*queues: Queue[]",
            "*workers: Worker[]",
            "*machines: Machine[]",
            "*failures: Failure[]",
            "failures_capped: boolean",
            "edges_sampled: boolean",
            "minute: object",
            "findings: object",
            "*chart: Series",
        ],
    ),
    (
        "Series",
        &[
            "*from: integer",
            "*step: integer",
            "*arrived: integer[]",
            "*done: integer[]",
            "*failed: integer[]",
            "p50: number?[]",
            "p95: number?[]",
            "p99: number?[]",
        ],
    ),
    (
        "Machine",
        &[
            "*name",
            "versions: integer[]",
            "workers: integer",
            "*steps: object",
            "*edges: Edge[]",
            "settled_last_minute: integer",
            "minute: object",
        ],
    ),
    (
        "Edge",
        &[
            "*from",
            "*to",
            "*outcome",
            "*count: integer",
            "took_seconds: number?",
            "last_at: time",
        ],
    ),
    (
        "Machines",
        &[
            "*machines: Machine[]",
            "capped: string[]",
            "at: time",
            "trouble: string?",
        ],
    ),
    ("Alert", &["*code", "*severity", "*text", "page"]),
    (
        "Failure",
        &[
            "*machine",
            "*step",
            "*status",
            "*fingerprint",
            "*error_group",
            "*example",
            "*count: integer",
            "first_at: time",
            "last_at: time",
            "newest_id",
        ],
    ),
    (
        "Failures",
        &[
            "*failures: Failure[]",
            "failures_capped: boolean",
            "at: time",
            "trouble: string?",
        ],
    ),
];

/// Instances, their details, and the operations on one instance.
pub(super) const INSTANCES: Schemas = &[
    (
        "Instances",
        &["*instances: Row[]", "next: string?", "next_at: string?"],
    ),
    (
        "NewInstance",
        &[
            "*machine",
            "*step",
            "version: integer",
            "state: any",
            "data: any",
            "queue",
            "priority: integer",
            "tenant",
            "key",
            "scope",
            "due_at: time",
            "delay_seconds: number",
            "lane",
            "lane_blocks: boolean",
            "partition",
            "force: boolean",
        ],
    ),
    ("Enqueued", &["*id", "*is_new: boolean"]),
    ("History", &["*history: Line[]", "*has_more: boolean"]),
    (
        "Line",
        &[
            "step_seq: integer",
            "claim_epoch: integer",
            "at: time",
            "from",
            "to",
            "outcome",
            "status",
            "attempt: integer",
            "took_seconds: number?",
            "woken_at: string?",
            "cause: string?",
            "error: string?",
            "worker: string?",
        ],
    ),
    (
        "Inbox",
        &["*signals: InboxSignal[]", "payloads_hidden: boolean"],
    ),
    (
        "InboxSignal",
        &[
            "id",
            "name",
            "payload: any",
            "dedup_key: string?",
            "inserted_at: time",
        ],
    ),
    ("Children", &["*counts: object", "*children: object[]"]),
    (
        "Explanation",
        &[
            "*id",
            "tenant",
            "machine",
            "version: integer",
            "step",
            "status",
            "queue",
            "attempt: integer",
            "eligible_at: time",
            "inserted_at: time",
            "updated_at: time",
            "last_error: string?",
            "now: time",
            "*blockers: object[]",
            "*reason",
        ],
    ),
    ("Signal", &["*name", "payload: any", "once"]),
    ("Signalled", &["id", "signal", "is_new: boolean"]),
    ("Cancel", &["why", "subtree: boolean"]),
    ("Cancelled", &["id", "cancelled: boolean"]),
    ("Retry", &["step", "data: any", "force: boolean"]),
    ("Retried", &["id", "runs_again: boolean"]),
];

/// Operations on many instances.
pub(super) const BULKS: Schemas = &[
    (
        "Many",
        &[
            "*kind",
            "*filter: object",
            "step",
            "force: boolean",
            "expect: integer",
            "why",
        ],
    ),
    (
        "Preview",
        &["*count: integer", "*is_exact: boolean", "sample: Row[]"],
    ),
    (
        "Bulk",
        &[
            "*id",
            "*kind",
            "*conditions: object",
            "retry_step: string?",
            "reason",
            "actor",
            "source: string?",
            "channel",
            "expected: integer",
            "expected_is_exact: boolean",
            "id_max",
            "cursor",
            "examined: integer",
            "changed: integer",
            "refused: integer",
            "refusals: string[]",
            "*state",
            "error: string?",
            "is_active: boolean",
            "share: number",
            "requested_at: time",
            "updated_at: time",
            "ended_at: string?",
        ],
    ),
    ("Bulks", &["*bulks: Bulk[]", "next: string?"]),
];

/// Queues and workers.
pub(super) const QUEUES: Schemas = &[
    (
        "Queue",
        &[
            "*name",
            "*paused: boolean",
            "paused_at: string?",
            "paused_by: string?",
            "due: integer",
            "oldest_due_at: string?",
            "scheduled: integer",
            "next_due_at: string?",
            "executing: integer",
            "workers: integer",
            "queued: integer",
            "partition_waiting: integer",
        ],
    ),
    ("Queues", &["*queues: Queue[]"]),
    (
        "Paused",
        &["*queue", "*paused: boolean", "was_paused: boolean"],
    ),
    (
        "Worker",
        &[
            "*id",
            "host",
            "pid: integer",
            "queues: string[]",
            "machines: string[]",
            "steps: string[]",
            "started_at: time",
            "lease_expires_at: time",
            "alive: boolean",
        ],
    ),
    ("Workers", &["*workers: Worker[]"]),
];

/// The audit log.
pub(super) const AUDIT: Schemas = &[
    ("Audit", &["*acts: Act[]", "next: string?"]),
    (
        "Act",
        &[
            "*id",
            "*at: time",
            "*actor",
            "source: string?",
            "*channel",
            "*action",
            "*subject",
            "succeeded: boolean?",
            "outcome: string?",
            "ended_at: string?",
        ],
    ),
];
