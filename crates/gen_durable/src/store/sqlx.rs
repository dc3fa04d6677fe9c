//! Sends the statements of the store through the driver `sqlx`, in `sqlx` transactions of callers
//! and of steps.

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Column, Encode, PgConnection, Postgres, Row, TypeInfo, ValueRef,
    encode::IsNull,
    error::BoxDynError,
    pool::PoolConnection,
    postgres::{PgArgumentBuffer, PgRow, PgTypeInfo, PgValueFormat, types::Oid},
};
use tokio_postgres::types::{FromSql, Type};

use super::{
    commit::{NextInputs, write_within},
    connection::Param,
    fault::Fault,
    row::Fields,
    step_tx::Owned,
    target::Target,
    tx::{Session, within_timeout},
};
use crate::model::step_result::StepResult;

/// A parameter in the binary format of Postgres. `tokio_postgres` and `sqlx` both send that format,
/// so one encoding serves both drivers.
struct Encoded {
    kind: Type,
    bytes: Option<BytesMut>,
}

impl Encoded {
    fn of(param: Param<'_>, kind: &Type) -> Result<Encoded, Fault> {
        let mut bytes = BytesMut::new();
        let is_null = param
            .to_sql_checked(kind, &mut bytes)
            .map_err(|error| Fault::unsendable(format!("a value cannot be encoded: {error}")))?;
        let bytes = matches!(is_null, tokio_postgres::types::IsNull::No).then_some(bytes);
        Ok(Encoded {
            kind: kind.clone(),
            bytes,
        })
    }
}

impl sqlx::Type<Postgres> for Encoded {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(Type::TEXT.oid()))
    }
}

impl Encode<'_, Postgres> for Encoded {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Ok(match &self.bytes {
            None => IsNull::Yes,
            Some(bytes) => {
                buffer.extend_from_slice(bytes);
                IsNull::No
            }
        })
    }
    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.kind.oid())))
    }
    fn size_hint(&self) -> usize {
        self.bytes.as_ref().map_or(0, BytesMut::len)
    }
}

impl Fields for PgRow {
    fn position(&self, name: &str) -> Option<usize> {
        self.columns()
            .iter()
            .position(|column| column.name() == name)
    }

    fn width(&self) -> usize {
        self.len()
    }

    fn field<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T, String> {
        let value = self.try_get_raw(index).map_err(|error| error.to_string())?;
        let info = value.type_info();
        let kind = info.oid().and_then(|oid| Type::from_oid(oid.0));
        let kind = kind
            .filter(T::accepts)
            .ok_or_else(|| format!("column {index} is a {}", info.name()))?;
        if value.format() != PgValueFormat::Binary {
            return Err(format!(
                "column {index} has the text format, not the binary one"
            ));
        }
        let read = if value.is_null() {
            T::from_sql_null(&kind)
        } else {
            T::from_sql(&kind, value.as_bytes().map_err(|e| e.to_string())?)
        };
        read.map_err(|error| format!("column {index}: {error}"))
    }
}

/// Sends one unnamed statement, because a pooler in front of Postgres may not keep named
/// statements.
async fn rows(
    connection: &mut PgConnection,
    text: String,
    params: &[(Param<'_>, Type)],
) -> Result<Vec<PgRow>, Fault> {
    let encoded: Vec<Encoded> = params
        .iter()
        .map(|(param, kind)| Encoded::of(*param, kind))
        .collect::<Result<_, Fault>>()?;
    // The text of the query is a static text of this crate. `Target` has checked the name of the
    // schema, which is the only part that this crate inserts into the text.
    let mut query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    for value in encoded {
        query = query.bind(value);
    }
    Ok(query.fetch_all(connection).await?)
}

/// Implements [`Session`] for types of `sqlx` that dereference to a connection.
macro_rules! session {
    ($($kind:ty),+) => {
        $(impl Session for $kind {
            type Row = PgRow;
            async fn rows(
                &mut self,
                text: String,
                params: &[(Param<'_>, Type)],
            ) -> Result<Vec<PgRow>, Fault> {
                rows(self, text, params).await
            }
        })+
    };
}
session!(
    PgConnection,
    PoolConnection<Postgres>,
    sqlx::Transaction<'_, Postgres>
);

impl Owned for sqlx::Transaction<'static, Postgres> {
    fn write<'a>(
        &'a mut self,
        target: &'a Target,
        result: &'a StepResult,
    ) -> BoxFuture<'a, Result<Option<NextInputs>, Fault>> {
        Box::pin(write_within(self, target, result))
    }
    // The engine has just written the step result in this transaction. So no statement of the
    // transaction has failed, and COMMIT cannot end in a silent rollback.
    fn commit(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(within_timeout(target, (*self).commit()))
    }
    fn rollback(self: Box<Self>, target: &Target) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(within_timeout(target, (*self).rollback()))
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Fault {
        let message = crate::error::chain(&error);
        match &error {
            sqlx::Error::Database(db) => match db.code() {
                Some(code) => Fault::by_code(&code, format!("{} [{code}]", db.message())),
                None => Fault::unexpected(message),
            },
            // The connection failed, so it is unknown whether the server executed the statement.
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => Fault::Lost(message),
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Fault::Away(message),
            _ => Fault::unexpected(message),
        }
    }
}
