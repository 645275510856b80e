//! The lines of a head, as offsets into its bytes.

use super::Broken;

/// Most field lines of a head.
pub const FIELDS_MAX: usize = 128;

/// Longest head that is looked at, in bytes, whatever a listener allows: offsets have 32 bits.
const HEAD_BYTES_MAX: usize = 1 << 30;

/// One field line: offsets into the bytes of its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    start: u32,
    name_end: u32,
    value_start: u32,
    value_end: u32,
    end: u32,
    /// It ends at this hop.
    pub(super) stays: bool,
}

impl Line {
    /// The field's name.
    pub fn name<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.start as usize..self.name_end as usize]
    }

    /// The field's value, without the white space around it.
    pub fn value<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.value_start as usize..self.value_end as usize]
    }

    /// Where the value stands in the bytes of its head.
    pub(super) fn value_range(&self) -> std::ops::Range<usize> {
        self.value_start as usize..self.value_end as usize
    }

    /// What stands between the colon and the end of the line is the value and at most one space
    /// before it.
    pub(super) fn is_tight(&self) -> bool {
        self.value_end + 2 == self.end && self.value_start - self.name_end <= 2
    }
}

/// Takes over what httparse found in `bytes`, a whole head or trailer section. It takes line ends
/// without CR, which are refused here. Returns where the first field begins.
pub(super) fn take(
    bytes: &[u8],
    fields: &[httparse::Header<'_>],
    lines: &mut Vec<Line>,
) -> Result<usize, Broken> {
    if bytes.len() > HEAD_BYTES_MAX {
        return Err(Broken("the head is too long"));
    }
    let base = bytes.as_ptr() as usize;
    // Parts of `bytes`, as httparse documents; `Line` would panic on others.
    let offset = |part: &[u8]| part.as_ptr() as usize - base;
    let last = bytes.len().saturating_sub(2);
    let starts = fields.iter().map(|field| offset(field.name.as_bytes()));
    let first = starts.clone().next().unwrap_or(last);
    let ends = starts.skip(1).chain(std::iter::once(last));
    // Before the first field of a trailer section there is no line.
    let mut crooked = first > 0 && !ends_line(bytes, first) || !ends_line(bytes, bytes.len());
    lines.clear();
    for (field, end) in fields.iter().zip(ends) {
        let start = offset(field.name.as_bytes());
        let name_end = start + field.name.len();
        // An empty value need not point into the head.
        let value_start = match field.value {
            [] => name_end + 1,
            value => offset(value),
        };
        crooked |= !ends_line(bytes, end);
        lines.push(Line {
            start: start as u32,
            name_end: name_end as u32,
            value_start: value_start as u32,
            value_end: (value_start + field.value.len()) as u32,
            end: end as u32,
            stays: false,
        });
    }
    match crooked {
        true => Err(Broken("a line of the head does not end with CR LF")),
        false => Ok(first),
    }
}

fn ends_line(bytes: &[u8], end: usize) -> bool {
    end >= 2 && bytes[end - 2..end] == *b"\r\n"
}

/// Copies the lines that travel on.
pub(super) fn copy_kept(bytes: &[u8], lines: &[Line], out: &mut Vec<u8>) {
    let mut begun: Option<u32> = None;
    for line in lines {
        match (line.stays, begun) {
            (true, Some(start)) => {
                out.extend_from_slice(&bytes[start as usize..line.start as usize]);
                begun = None;
            }
            (false, None) => begun = Some(line.start),
            (true, None) | (false, Some(_)) => {}
        }
    }
    if let (Some(start), Some(last)) = (begun, lines.last()) {
        out.extend_from_slice(&bytes[start as usize..last.end as usize]);
    }
}

/// A content length: digits and nothing else, at most 2^63 - 1.
pub(super) fn content_length(line: &Line, bytes: &[u8]) -> Result<u64, Broken> {
    let value = line.value(bytes);
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) || !line.is_tight() {
        return Err(Broken("content-length is not a number"));
    }
    let mut length = 0_u64;
    for digit in value {
        let digit = u64::from(digit - b'0');
        length = length
            .checked_mul(10)
            .and_then(|length| length.checked_add(digit))
            .filter(|length| i64::try_from(*length).is_ok())
            .ok_or(Broken("content-length is beyond 2^63"))?;
    }
    Ok(length)
}

/// The only transfer coding that is taken.
pub(super) fn check_chunked(line: &Line, bytes: &[u8]) -> Result<(), Broken> {
    match line.value(bytes).eq_ignore_ascii_case(b"chunked") && line.is_tight() {
        true => Ok(()),
        false => Err(Broken("transfer-encoding is not exactly `chunked`")),
    }
}
