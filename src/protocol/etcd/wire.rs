//! Protocol buffers at the level of the wire: fields are found and put, never re-encoded.
//!
//! Messages that pass through are edited here instead of being decoded into types, so that a field
//! that this version does not know stays where it is. Invariants:
//! - what [`scan`] takes has one reading: a field that may stand once stands at most once, with the
//!   type that it is declared with (decoders differ on what a repeated one means: the last wins, or
//!   the two are merged);
//! - lengths are checked against what is there before anything is done with them.
//!
//! Source: "Encoding", protocol buffers' documentation.

/// Bytes that are no message of the expected shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the message cannot be read: {0}")]
pub struct Malformed(pub &'static str);

/// One field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    /// Its number.
    pub number: u32,
    /// Its value.
    pub value: Value<'a>,
    /// The whole of it as it came, key included.
    pub raw: &'a [u8],
}

/// A field's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A number or an enumeration's member.
    Varint(u64),
    /// Bytes, a text or a message.
    Bytes(&'a [u8]),
    /// A fixed-width number: no known field has one.
    Fixed,
}

impl<'a> Value<'a> {
    /// The number; 0 where the value is none.
    pub fn number(self) -> u64 {
        match self {
            Value::Varint(number) => number,
            Value::Bytes(_) | Value::Fixed => 0,
        }
    }

    /// The bytes; none where the value is not of that type.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            Value::Varint(_) | Value::Fixed => &[],
        }
    }
}

/// What a message's known fields are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Numbers, at most one each.
    pub varints: &'static [u32],
    /// Bytes, at most one each.
    pub bytes: &'static [u32],
    /// Bytes, any number of each.
    pub repeated: &'static [u32],
}

/// The fields of a message, in order.
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// The fields of a message.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let whole = self.rest;
        let field = self.take(whole);
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn take(&mut self, whole: &'a [u8]) -> Result<Field<'a>, Malformed> {
        let mut rest = whole;
        let key = varint(&mut rest)?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed("a field's number"))?;
        if number == 0 {
            return Err(Malformed("a field has the number 0"));
        }
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut rest)?),
            1 => fixed(&mut rest, 8)?,
            2 => {
                let length = varint(&mut rest)?;
                let length = usize::try_from(length).map_err(|_| Malformed("a field's length"))?;
                let (bytes, after) = rest
                    .split_at_checked(length)
                    .ok_or(Malformed("a field is longer than its message"))?;
                rest = after;
                Value::Bytes(bytes)
            }
            5 => fixed(&mut rest, 4)?,
            // Groups end somewhere inside of what follows: nothing of etcd's has them.
            _ => return Err(Malformed("a field has an unknown wire type")),
        };
        self.rest = rest;
        Ok(Field {
            number,
            value,
            raw: &whole[..whole.len() - rest.len()],
        })
    }
}

fn fixed<'a>(rest: &mut &'a [u8], width: usize) -> Result<Value<'a>, Malformed> {
    let cut = Malformed("a field is longer than its message");
    (_, *rest) = rest.split_at_checked(width).ok_or(cut)?;
    Ok(Value::Fixed)
}

fn varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0_u64;
    for at in 0..10 {
        let (byte, after) = rest.split_first().ok_or(Malformed("it is cut off"))?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if at == 9 && bits > 1 {
            return Err(Malformed("a number is too large"));
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("a number is too long"))
}

/// Reads a message of a known shape: `take` gets each known field.
pub fn scan<'a>(
    message: &'a [u8],
    shape: Shape,
    mut take: impl FnMut(u32, Value<'a>),
) -> Result<(), Malformed> {
    let mut seen = 0_u128;
    for field in fields(message) {
        let Field { number, value, .. } = field?;
        let fits = match value {
            Value::Varint(_) => shape.varints.contains(&number),
            Value::Bytes(_) => shape.bytes.contains(&number) || shape.repeated.contains(&number),
            Value::Fixed => false,
        };
        let known = [shape.varints, shape.bytes, shape.repeated];
        if !fits && known.iter().any(|numbers| numbers.contains(&number)) {
            return Err(Malformed("a field has another type than its own"));
        }
        if !fits {
            continue;
        }
        if !shape.repeated.contains(&number) {
            // Known numbers are below 128.
            let bit = 1_u128 << (number % 128);
            if seen & bit != 0 {
                return Err(Malformed("a field is given twice"));
            }
            seen |= bit;
        }
        take(number, value);
    }
    Ok(())
}

/// The last field of this number that has bytes. For answers of the backend, which is trusted to
/// give each once.
pub fn bytes_of(message: &[u8], wanted: u32) -> Result<&[u8], Malformed> {
    let mut found: &[u8] = &[];
    for field in fields(message) {
        let field = field?;
        if let (true, Value::Bytes(bytes)) = (field.number == wanted, field.value) {
            found = bytes;
        }
    }
    Ok(found)
}

/// The last number of this field; 0 where there is none.
pub fn number_of(message: &[u8], wanted: u32) -> Result<u64, Malformed> {
    let mut found = 0;
    for field in fields(message) {
        let field = field?;
        if field.number == wanted {
            found = field.value.number();
        }
    }
    Ok(found)
}

/// Puts a field of bytes.
pub fn put_bytes(message: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(message, u64::from(number) << 3 | 2);
    put_varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

/// Puts a field with a number, unless it is 0, which is what a missing one means.
pub fn put_number(message: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        put_varint(message, u64::from(number) << 3);
        put_varint(message, value);
    }
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        // The low seven bits.
        message.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::{Malformed, Shape, Value, fields, put_bytes, put_number, scan};

    const SHAPE: Shape = Shape {
        varints: &[1],
        bytes: &[2],
        repeated: &[3],
    };

    fn read(message: &[u8]) -> Result<Vec<(u32, Vec<u8>)>, Malformed> {
        let mut found = vec![];
        scan(message, SHAPE, |number, value| {
            found.push((number, value.bytes().to_vec()));
        })?;
        Ok(found)
    }

    #[test]
    fn what_was_put_is_found_with_its_bytes() {
        let mut message = vec![];
        put_number(&mut message, 1, u64::MAX);
        put_bytes(&mut message, 2, &[7; 300]);
        put_bytes(&mut message, 99, b"unknown");
        let found: Vec<_> = fields(&message).map(Result::unwrap).collect();
        assert_eq!(found[0].value, Value::Varint(u64::MAX));
        assert_eq!(found[1].value, Value::Bytes(&[7; 300]));
        assert_eq!(found[2].number, 99);
        let raw: Vec<u8> = found.iter().flat_map(|field| field.raw.to_vec()).collect();
        assert_eq!(raw, message);
        assert_eq!(read(&message).unwrap().len(), 2);
    }

    #[test]
    fn a_field_that_decoders_read_differently_is_refused() {
        let (mut twice, mut many, mut typed) = (vec![], vec![], vec![]);
        for _ in 0..2 {
            put_bytes(&mut twice, 2, b"a");
            put_bytes(&mut many, 3, b"a");
        }
        put_number(&mut typed, 2, 5);
        assert!(read(&twice).is_err());
        assert!(read(&typed).is_err());
        assert_eq!(read(&many).unwrap().len(), 2);
    }

    #[test]
    fn no_bytes_panic() {
        let mut message = vec![];
        put_number(&mut message, 1, 300);
        put_bytes(&mut message, 2, b"key");
        for cut in 0..message.len() {
            let _ = read(&message[..cut]);
            for bit in 0..8 {
                let mut changed = message.clone();
                changed[cut] ^= 1 << bit;
                let _ = read(&changed);
            }
        }
        for bad in [
            &[0x0b][..],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0x80; 11],
            &[0x00, 0x00],
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
