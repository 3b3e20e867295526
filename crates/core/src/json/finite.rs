//! Numbers that JSON has none for: NaN and the infinities, which `serde_json` writes as null.
//!
//! Invariant: a value in which nothing is found is written without loss. Deliberately absent: the
//! text of the value; this serializer only walks it.

use std::fmt;

use serde::Serialize;
use serde::ser::{
    self, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Where the first number is that JSON cannot hold, and what it is: `.total[1] is NaN`.
pub(super) fn not_finite<T: Serialize + ?Sized>(value: &T) -> Option<String> {
    match value.serialize(&mut Walk::default()) {
        Err(Found(Some(found))) => Some(found),
        // If the value cannot be serialized at all, serde_json reports that error itself.
        Ok(()) | Err(Found(None)) => None,
    }
}

/// The walk's way down to where it is.
#[derive(Default)]
struct Walk {
    path: Vec<String>,
    /// The number of the next element of each list on the way.
    next: Vec<usize>,
}

/// Why the walk ended: the number that was found, or a failure of the value's own.
#[derive(Debug)]
struct Found(Option<String>);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("the value cannot be written"))
    }
}

impl std::error::Error for Found {}

impl ser::Error for Found {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

impl Walk {
    fn number(&self, number: f64) -> Result<(), Found> {
        if number.is_finite() {
            return Ok(());
        }
        let place = match self.path.is_empty() {
            true => "it".to_owned(),
            false => self.path.concat(),
        };
        Err(Found(Some(format!("{place} is {number}"))))
    }

    fn under<T: Serialize + ?Sized>(&mut self, step: String, value: &T) -> Result<(), Found> {
        self.path.push(step);
        value.serialize(&mut *self)?;
        self.path.pop();
        Ok(())
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Found> {
        let at = self.next.last_mut().map_or(0, |next| {
            *next += 1;
            *next - 1
        });
        self.under(format!("[{at}]"), value)
    }

    fn list(&mut self) -> &mut Self {
        self.next.push(0);
        self
    }

    fn close(&mut self) {
        self.next.pop();
    }
}

macro_rules! passes {
    ($($method:ident($type:ty);)+) => {
        $(fn $method(self, _: $type) -> Result<(), Found> {
            Ok(())
        })+
    };
}

impl<'w> Serializer for &'w mut Walk {
    type Ok = ();
    type Error = Found;
    type SerializeSeq = &'w mut Walk;
    type SerializeTuple = &'w mut Walk;
    type SerializeTupleStruct = &'w mut Walk;
    type SerializeTupleVariant = &'w mut Walk;
    type SerializeMap = Members<'w>;
    type SerializeStruct = &'w mut Walk;
    type SerializeStructVariant = &'w mut Walk;

    passes! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_unit_struct(&'static str);
    }

    fn serialize_f32(self, number: f32) -> Result<(), Found> {
        self.number(f64::from(number))
    }

    fn serialize_f64(self, number: f64) -> Result<(), Found> {
        self.number(number)
    }

    fn serialize_none(self) -> Result<(), Found> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Found> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Found> {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), Found> {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Found> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Found> {
        self.under(format!(".{variant}"), value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Found> {
        Ok(self.list())
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Found> {
        Ok(self.list())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Found> {
        Ok(self.list())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Found> {
        Ok(self.list())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Members<'w>, Found> {
        Ok(Members { walk: self, key: String::new() })
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Found> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Found> {
        Ok(self)
    }
}

macro_rules! elements {
    ($($trait:ident :: $method:ident;)+) => {
        $(impl $trait for &mut Walk {
            type Ok = ();
            type Error = Found;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Found> {
                self.element(value)
            }
            fn end(self) -> Result<(), Found> {
                self.close();
                Ok(())
            }
        })+
    };
}

elements! {
    SerializeSeq::serialize_element;
    SerializeTuple::serialize_element;
    SerializeTupleStruct::serialize_field;
    SerializeTupleVariant::serialize_field;
}

macro_rules! members {
    ($($trait:ident;)+) => {
        $(impl $trait for &mut Walk {
            type Ok = ();
            type Error = Found;
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Found> {
                self.under(format!(".{name}"), value)
            }
            fn end(self) -> Result<(), Found> {
                Ok(())
            }
        })+
    };
}

members! {
    SerializeStruct;
    SerializeStructVariant;
}

/// The members of a map.
struct Members<'w> {
    walk: &'w mut Walk,
    key: String,
}

impl SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Found;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Found> {
        let key = serde_json::to_value(key).map_err(|_| Found(None))?;
        self.key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Found> {
        self.walk.under(format!(".{}", self.key), value)
    }

    fn end(self) -> Result<(), Found> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    enum Shape {
        Unit,
        One(f64),
        Two(u8, f32),
        Named { side: Option<f64> },
    }

    #[derive(Serialize)]
    struct Bill {
        totals: Vec<f64>,
        shapes: Vec<Shape>,
        rates: BTreeMap<u8, (u8, f64)>,
    }

    fn bill() -> Bill {
        let shapes = vec![Shape::Unit, Shape::Named { side: None }];
        Bill { totals: vec![1.0, f64::MAX], shapes, rates: BTreeMap::from([(7, (1, 0.5))]) }
    }

    #[test]
    fn the_first_number_that_json_has_not_is_named_with_its_place() {
        assert_eq!(not_finite(&f64::NAN).unwrap(), "it is NaN");
        assert_eq!(not_finite(&Some(f32::NEG_INFINITY)).unwrap(), "it is -inf");
        assert_eq!(not_finite(&bill()), None);
        let totals = vec![0.0, f64::NAN];
        assert_eq!(not_finite(&Bill { totals, ..bill() }).unwrap(), ".totals[1] is NaN");
        let rates = BTreeMap::from([(1, (1, 1.0)), (7, (1, f64::INFINITY))]);
        assert_eq!(not_finite(&Bill { rates, ..bill() }).unwrap(), ".rates.7[1] is inf");
        for (shape, place) in [
            (Shape::One(f64::NAN), ".shapes[1].One is NaN"),
            (Shape::Two(1, f32::NAN), ".shapes[1][1] is NaN"),
            (Shape::Named { side: Some(f64::NAN) }, ".shapes[1].side is NaN"),
        ] {
            let shapes = vec![Shape::Unit, shape, Shape::Unit];
            assert_eq!(not_finite(&Bill { shapes, ..bill() }).unwrap(), place);
        }
    }
}
