//! What the control role must be allowed to do, tried at the start.

use super::{Control, ControlError, column};
use crate::config::ControlRole;
use crate::proxy::postgres::fence_store::check_installed;

/// The oldest server that is known to behave as this proxy needs it.
const VERSION_MIN: i32 = 130_000;

const RIGHTS: &str = "SELECT current_setting('server_version_num')::int4, \
     pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), \
     pg_has_role(current_user, 'pg_signal_backend', 'USAGE')";

pub(super) async fn check(control: &Control) -> Result<(), ControlError> {
    let link = control.link().await?;
    let rows = control.ask(&link, RIGHTS, &[]).await?;
    let Some(row) = rows.first() else {
        return Err(ControlError::Unfit(
            "it does not tell its version".to_owned(),
        ));
    };
    let version: i32 = column(row, 0)?;
    if version < VERSION_MIN {
        return Err(ControlError::Unfit(format!(
            "it is Postgres {}: 13 and later are known to work",
            version / 10_000
        )));
    }
    let has = [
        ("pg_read_all_stats", column::<bool>(row, 1)?),
        ("pg_signal_backend", column::<bool>(row, 2)?),
    ];
    let lacks: Vec<&str> = has.iter().filter(|it| !it.1).map(|it| it.0).collect();
    if !lacks.is_empty() {
        return Err(lacking(control.role()?, &lacks));
    }
    if control.inner.raised.is_some() {
        check_installed(&link.client).await?;
    }
    Ok(())
}

/// The error that says what to grant.
pub(super) fn lacking(role: &ControlRole, roles: &[&str]) -> ControlError {
    let (user, roles) = (&role.user, roles.join(", "));
    let quoted = user.replace('"', "\"\"");
    ControlError::Denied(format!(
        "the control role {user:?} may not do what proves old writes dead: GRANT {roles} TO \
         \"{quoted}\""
    ))
}
