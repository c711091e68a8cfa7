//! Datatypes: the configuration's names, the wire's names and the engine's types.

use halimede_tensor::DType;

use super::proto::DataType;

/// One row per datatype of the protocol.
const TABLE: [(DataType, &str, DType); 14] = [
    (DataType::TypeBool, "BOOL", DType::Bool),
    (DataType::TypeUint8, "UINT8", DType::U8),
    (DataType::TypeUint16, "UINT16", DType::U16),
    (DataType::TypeUint32, "UINT32", DType::U32),
    (DataType::TypeUint64, "UINT64", DType::U64),
    (DataType::TypeInt8, "INT8", DType::I8),
    (DataType::TypeInt16, "INT16", DType::I16),
    (DataType::TypeInt32, "INT32", DType::I32),
    (DataType::TypeInt64, "INT64", DType::I64),
    (DataType::TypeFp16, "FP16", DType::F16),
    (DataType::TypeFp32, "FP32", DType::F32),
    (DataType::TypeFp64, "FP64", DType::F64),
    (DataType::TypeString, "BYTES", DType::String),
    (DataType::TypeBf16, "BF16", DType::Bf16),
];

impl DataType {
    /// The name in requests and metadata, such as `FP32` and `BYTES`. `<invalid>` for no datatype, as
    /// Triton prints it.
    pub fn wire_name(self) -> &'static str {
        TABLE.iter().find(|row| row.0 == self).map_or("<invalid>", |row| row.1)
    }

    /// The datatype that requests and metadata call `name`.
    pub fn from_wire_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The engine's type, or `None` for `TYPE_INVALID`.
    pub fn to_dtype(self) -> Option<DType> {
        TABLE.iter().find(|row| row.0 == self).map(|row| row.2)
    }

    /// The protocol's type for the engine's, or `TYPE_INVALID` where the protocol has none (complex
    /// numbers, 8-bit floats and types narrower than a byte).
    pub fn from_dtype(dtype: DType) -> Self {
        TABLE.iter().find(|row| row.2 == dtype).map_or(Self::TypeInvalid, |row| row.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_has_one_name_on_each_side() {
        for (proto, wire, dtype) in TABLE {
            assert_eq!(proto.wire_name(), wire);
            assert_eq!(DataType::from_wire_name(wire), Some(proto));
            assert_eq!(proto.to_dtype(), Some(dtype));
            assert_eq!(DataType::from_dtype(dtype), proto);
            let expected = if wire == "BYTES" { "TYPE_STRING".to_owned() } else { format!("TYPE_{wire}") };
            assert_eq!(proto.as_str_name(), expected);
            assert_eq!(DataType::try_from(proto as i32), Ok(proto));
        }
        // Number 0 is TYPE_INVALID; every other number of the enum is in the table.
        assert!((1..=14).all(|n| DataType::try_from(n).is_ok_and(|d| d.to_dtype().is_some())));
        assert!(DataType::try_from(15).is_err());
        assert_eq!(DataType::TypeInvalid.wire_name(), "<invalid>");
        assert_eq!(DataType::from_dtype(DType::Complex64), DataType::TypeInvalid);
        assert_eq!(DataType::from_wire_name("STRING"), None);
    }
}
