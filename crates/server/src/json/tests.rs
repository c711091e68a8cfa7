use proptest::prelude::*;

use super::*;

fn parse_error(text: &str) -> String {
    let message = Document::parse(text.as_bytes()).unwrap_err().message;
    message.strip_prefix("failed to parse the request JSON buffer: ").unwrap().to_owned()
}

#[test]
fn errors_name_what_and_where() {
    for (text, expected) in [
        ("", "The document is empty. at 0"),
        ("{", "Missing a name for object member. at 1"),
        ("not json", "Invalid value. at 1"),
        ("{\"inputs\":[],}", "Missing a name for object member. at 13"),
        ("{\"ready\"", "Missing a colon after a name of object member. at 8"),
        ("{} x", "The document root must not be followed by other values. at 3"),
        ("[1 2]", "Missing a comma or ] after an array element. at 3"),
        ("{\"a\":1 2}", "Missing a comma or } after an object member. at 7"),
        ("[\"abc", "Missing a closing quotation mark in string. at 5"),
        ("[\"\\x\"]", "Invalid escape character in string. at 2"),
        ("[\"\\u12g4\"]", "Incorrect hex digit after \\u escape in string. at 2"),
        ("[\"\\udc00\"]", "The surrogate pair in string is invalid. at 2"),
        ("[1.]", "Miss fraction part in number. at 3"),
        ("[1e]", "Miss exponent in number. at 3"),
        ("[1e400]", "Number too big to be stored in double. at 1"),
        ("[nan]", "Invalid value. at 2"),
        ("[1,]", "Invalid value. at 3"),
    ] {
        assert_eq!(parse_error(text), expected, "{text}");
    }
}

#[test]
fn scalars() {
    let text =
        br#"[1, -2, 18446744073709551615, 0.1, 1e3, NaN, -Inf, Infinity, true, null, "a\n\u00e9\ud83d\ude00", -0.0]"#;
    let document = Document::parse(text).unwrap();
    let values: Vec<Scalar> = document.root().elements().unwrap().map(|value| value.scalar().unwrap()).collect();
    assert_eq!(
        values[..5],
        [Scalar::Int(1), Scalar::Int(-2), Scalar::UInt(u64::MAX), Scalar::Double(0.1), Scalar::Double(1000.0)]
    );
    assert!(matches!(values[5], Scalar::Double(value) if value.is_nan()));
    assert_eq!(
        values[6..11],
        [
            Scalar::Double(f64::NEG_INFINITY),
            Scalar::Double(f64::INFINITY),
            Scalar::Bool(true),
            Scalar::Null,
            Scalar::String("a\né😀".as_bytes())
        ]
    );
    assert!(matches!(values[11], Scalar::Double(value) if value == 0.0 && value.is_sign_negative()));
}

#[test]
fn members_and_nesting() {
    let document = Document::parse(br#"{"a":{"b":[[1,2],[3]]},"a":5,"c":[]}"#).unwrap();
    let data = document.root().find("a").unwrap().member("b").unwrap();
    let flat: Vec<_> = data.flattened().collect();
    assert_eq!(flat, [(Some(Scalar::Int(1)), 2), (Some(Scalar::Int(2)), 2), (Some(Scalar::Int(3)), 2)]);
    let names: Vec<_> = document.root().members().unwrap().map(|(name, _)| name.into_owned()).collect();
    assert_eq!(names, ["a", "a", "c"]);
    assert!(document.root().find("d").is_none());
    let missing = document.root().member("inputs").unwrap_err().message;
    assert_eq!(missing, "attempt to access non-existing object member 'inputs'");
}

#[test]
fn a_million_brackets_cost_no_stack() {
    let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
    let document = Document::parse(deep.as_bytes()).unwrap();
    assert_eq!(document.root().flattened().count(), 0);
}

#[test]
fn doubles_print_as_rapidjson_does() {
    for (value, text) in [
        (0.1f32 as f64, "0.10000000149011612"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e30f32 as f64, "1.0000000150474662e30"),
        (1e-45f32 as f64, "1.401298464324817e-45"),
        (f32::MAX as f64, "3.4028234663852886e38"),
        (16777216.0, "16777216.0"),
        (1e300, "1e300"),
        (-2.5e-7, "-2.5e-7"),
        (0.000025, "0.000025"),
        (1e20, "100000000000000000000.0"),
        (1e21, "1e21"),
        (123456.75, "123456.75"),
        (1e16, "10000000000000000.0"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "Infinity"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        let mut writer = Writer::default();
        writer.double(value);
        assert_eq!(String::from_utf8(writer.into_bytes()).unwrap(), text);
    }
}

#[test]
fn structure_prints_with_commas() {
    let mut writer = Writer::default();
    writer.begin_object();
    writer.member("a", "x\ty\"\u{1}");
    writer.name("b");
    writer.begin_array();
    writer.signed(i64::MIN);
    writer.unsigned(u64::MAX);
    writer.boolean(false);
    writer.end_array();
    writer.end_object();
    let text = String::from_utf8(writer.into_bytes()).unwrap();
    assert_eq!(text, r#"{"a":"x\ty\"\u0001","b":[-9223372036854775808,18446744073709551615,false]}"#);
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
        let _ = Document::parse(&bytes);
    }

    #[test]
    fn texts_like_json_are_parsed_or_refused(text in "[\\[\\]{},:\"\\\\0-9eE.+tnu \\-]{0,64}") {
        let _ = Document::parse(text.as_bytes());
    }

    #[test]
    fn doubles_read_back(value: f64) {
        prop_assume!(!value.is_nan());
        let mut writer = Writer::default();
        writer.begin_array();
        writer.double(value);
        writer.end_array();
        let bytes = writer.into_bytes();
        let document = Document::parse(&bytes).unwrap();
        let first = document.root().elements().unwrap().next().unwrap();
        prop_assert_eq!(first.scalar().unwrap().double().unwrap().to_bits(), value.to_bits());
    }

    #[test]
    fn strings_read_back(bytes: Vec<u8>) {
        let mut writer = Writer::default();
        writer.string(&bytes);
        let printed = writer.into_bytes();
        let document = Document::parse(&printed).unwrap();
        prop_assert_eq!(document.root().scalar().unwrap(), Scalar::String(&bytes));
    }
}
