//! The OpenAPI schemas of limits: each schema name with its fields.

pub(super) const SCHEMAS: &[(&str, &[&str])] = &[
    ("Limits", &["*limits: Limit[]"]),
    (
        "Limit",
        &[
            "*name",
            "*at_once: integer?",
            "*per_key: integer?",
            "*rate: LimitRate?",
            "*key_rate: LimitRate?",
            "*declared: object",
            "*changed_at: string?",
            "*paused_at: string?",
            "*closed_until: string?",
            "*running: integer",
            "*waiting: integer",
            "*is_lower_bound: boolean",
            "*tokens: number?",
        ],
    ),
    (
        "LimitRate",
        &["*weight: number", "period_seconds: number", "burst: number"],
    ),
    (
        "LimitDetails",
        &[
            "*limit: Limit",
            "*keys: LimitKey[]",
            "*keys_hidden: boolean",
            "*chart: LimitChart?",
        ],
    ),
    (
        "LimitKey",
        &[
            "*key",
            "*at_once: integer?",
            "*rate: LimitRate?",
            "*is_own: boolean",
            "*running: integer",
            "*waiting: integer",
            "*tokens: number?",
            "*ready_at: string?",
        ],
    ),
    (
        "LimitChart",
        &[
            "*from: integer",
            "*step: integer",
            "*running: any",
            "*waiting: any",
        ],
    ),
    (
        "LimitBounds",
        &[
            "at_once: integer?",
            "per_key: integer?",
            "rate: LimitRate?",
            "key_rate: LimitRate?",
        ],
    ),
    (
        "LimitKeyBounds",
        &["*key", "at_once: integer?", "rate: LimitRate?"],
    ),
    ("LimitKeyName", &["*key"]),
    ("LimitSet", &["*limit", "key"]),
    ("LimitPaused", &["*limit", "*paused: boolean"]),
];
