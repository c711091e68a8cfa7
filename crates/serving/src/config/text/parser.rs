//! Reads a message from its text format.

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value,
};

use super::super::suggest::{nearest, suggestion};
use super::{
    NOT_UTF8, TextError, excerpt,
    lexer::{Lexer, Token},
};

/// Reads a message of the type `descriptor`. The depth of recursion is that of the schema, which is
/// fixed: a field that the schema does not know ends the reading.
pub(in super::super) fn parse_message(text: &str, descriptor: MessageDescriptor) -> Result<DynamicMessage, TextError> {
    let mut parser = Parser::new(text)?;
    let mut message = DynamicMessage::new(descriptor);
    while parser.token != Token::End {
        parser.field(&mut message)?;
    }
    Ok(message)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    /// Where `token` starts.
    offset: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, TextError> {
        let mut lexer = Lexer::new(text);
        let (offset, token) = lexer.next()?;
        Ok(Self { lexer, token, offset })
    }

    /// Takes the current token and moves on.
    fn take(&mut self) -> Result<Token<'a>, TextError> {
        let (offset, next) = self.lexer.next()?;
        self.offset = offset;
        Ok(std::mem::replace(&mut self.token, next))
    }

    /// Moves on if the current token is `symbol`.
    fn eat(&mut self, symbol: char) -> Result<bool, TextError> {
        let found = self.token == Token::Symbol(symbol);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    /// The current token as it is written; empty at the end of the text, as protobuf has it.
    fn found(&self) -> String {
        match self.token {
            Token::End => String::new(),
            _ => excerpt(self.lexer.source(self.offset)),
        }
    }

    /// The error of a token that is no `kind`, in protobuf's words and then in those of the field.
    fn no<T>(&self, kind: &str, field: &FieldDescriptor, what: &str) -> Result<T, TextError> {
        self.wrong(format!("Expected {kind}, got: {}", self.found()), field, what)
    }

    /// The error of a token that is not `symbol`, in protobuf's words and then in those of the field.
    fn missing<T>(&self, symbol: char, field: &FieldDescriptor, what: &str) -> Result<T, TextError> {
        self.wrong(format!("Expected \"{symbol}\", found \"{}\"", self.found()), field, what)
    }

    /// An error at the current token: protobuf's words, which people look for in logs, and what the field takes.
    fn wrong<T>(&self, text: String, field: &FieldDescriptor, what: &str) -> Result<T, TextError> {
        Err(TextError::new(self.offset, format!("{text}; field \"{}\" takes {what}", field.name())))
    }

    fn field(&mut self, message: &mut DynamicMessage) -> Result<(), TextError> {
        let offset = self.offset;
        let descriptor = message.descriptor();
        let name = match &self.token {
            Token::Identifier(name) => *name,
            _ => {
                let text = format!(
                    "Expected identifier, got: {}; a field of \"{}\" begins with its name",
                    self.found(),
                    descriptor.full_name()
                );
                return Err(TextError::new(offset, text));
            }
        };
        let Some(field) = descriptor.get_field_by_name(name) else {
            return Err(TextError::new(offset, unknown_field(&descriptor, name)));
        };
        self.take()?;

        let colon = self.eat(':')?;
        if !colon && !matches!(field.kind(), Kind::Message(_)) {
            return self.missing(':', &field, "a value behind a colon");
        }
        if field.is_map() || field.is_list() {
            self.repeated(&field, message)?;
        } else {
            check_unset(&field, message, offset)?;
            let value = self.value(&field)?;
            message.set_field(&field, value);
        }
        if !self.eat(',')? {
            self.eat(';')?;
        }
        Ok(())
    }

    /// One value of a repeated field, or a list of them in brackets.
    fn repeated(&mut self, field: &FieldDescriptor, message: &mut DynamicMessage) -> Result<(), TextError> {
        if !self.eat('[')? {
            return self.element(field, message);
        }
        if self.eat(']')? {
            return Ok(());
        }
        loop {
            self.element(field, message)?;
            if self.eat(']')? {
                return Ok(());
            }
            if !self.eat(',')? {
                return self.missing(',', field, "',' or ']' after an element");
            }
        }
    }

    fn element(&mut self, field: &FieldDescriptor, message: &mut DynamicMessage) -> Result<(), TextError> {
        let offset = self.offset;
        let element = self.value(field)?;
        match message.get_field_mut(field) {
            Value::List(list) => list.push(element),
            Value::Map(map) => {
                let (key, value) =
                    map_entry(element).ok_or_else(|| TextError::new(offset, "a map needs entries of key and value"))?;
                map.insert(key, value);
            }
            // Only repeated fields and maps come here.
            _ => return self.no("value", field, "one value"),
        }
        Ok(())
    }

    /// One value of the field's type.
    fn value(&mut self, field: &FieldDescriptor) -> Result<Value, TextError> {
        Ok(match field.kind() {
            Kind::Message(descriptor) => Value::Message(self.message(field, descriptor)?),
            Kind::Enum(descriptor) => Value::EnumNumber(self.enumeration(field, &descriptor)?),
            Kind::Bool => Value::Bool(self.boolean(field)?),
            Kind::String => Value::String(self.string(field)?),
            Kind::Bytes => Value::Bytes(self.bytes(field)?.into()),
            Kind::Float => Value::F32(self.float(field)? as f32),
            Kind::Double => Value::F64(self.float(field)?),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(self.integer(field, "a 32-bit integer")?),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(self.integer(field, "a 64-bit integer")?),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(self.integer(field, "a 32-bit integer from 0")?),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(self.integer(field, "a 64-bit integer from 0")?),
        })
    }

    fn message(&mut self, field: &FieldDescriptor, descriptor: MessageDescriptor) -> Result<DynamicMessage, TextError> {
        let close = if self.eat('{')? {
            '}'
        } else if self.eat('<')? {
            '>'
        } else {
            return self.missing('{', field, "a message in braces");
        };
        let opened = self.offset;
        let mut message = DynamicMessage::new(descriptor);
        loop {
            if self.eat(close)? {
                return Ok(message);
            }
            if self.token == Token::End {
                return Err(TextError::new(opened, format!("field \"{}\" is not closed with '{close}'", field.name())));
            }
            self.field(&mut message)?;
        }
    }

    fn enumeration(&mut self, field: &FieldDescriptor, descriptor: &EnumDescriptor) -> Result<i32, TextError> {
        let Token::Identifier(name) = self.token else {
            return match self.token {
                Token::Integer { .. } | Token::Symbol('-') => self.integer(field, "the name of an enumeration value"),
                _ => self.no("integer or identifier", field, "the name of an enumeration value"),
            };
        };
        if let Some(value) = descriptor.get_value_by_name(name) {
            self.take()?;
            return Ok(value.number());
        }
        let values: Vec<_> = descriptor.values().collect();
        let names = values.iter().map(|value| value.name());
        let hint = match nearest(name, names.clone()) {
            Some(near) => suggestion(near),
            None => format!("; the values are {}", names.collect::<Vec<_>>().join(", ")),
        };
        let text = format!("Unknown enumeration value of \"{}\" for field \"{}\"{hint}", excerpt(name), field.name());
        Err(TextError::new(self.offset, text))
    }

    fn boolean(&mut self, field: &FieldDescriptor) -> Result<bool, TextError> {
        let value = match &self.token {
            Token::Identifier("true" | "True" | "t") | Token::Integer { value: Some(1), .. } => true,
            Token::Identifier("false" | "False" | "f") | Token::Integer { value: Some(0), .. } => false,
            Token::Identifier(_) => {
                let text = format!("Invalid value for boolean field \"{}\". Value: \"{}\"", field.name(), self.found());
                return self.wrong(text, field, "true or false");
            }
            Token::Integer { .. } => return self.out_of_range(field, "true or false"),
            _ => return self.no("identifier", field, "true or false"),
        };
        self.take()?;
        Ok(value)
    }

    /// Strings next to each other are one string.
    fn bytes(&mut self, field: &FieldDescriptor) -> Result<Vec<u8>, TextError> {
        if !matches!(self.token, Token::String(_)) {
            return self.no("string", field, "a string in quotes");
        }
        let mut value = Vec::new();
        while matches!(self.token, Token::String(_)) {
            if let Token::String(bytes) = self.take()? {
                value.extend(bytes);
            }
        }
        Ok(value)
    }

    fn string(&mut self, field: &FieldDescriptor) -> Result<String, TextError> {
        let offset = self.offset;
        let text = String::from_utf8(self.bytes(field)?).ok().filter(|text| !text.contains(NOT_UTF8));
        text.ok_or_else(|| {
            let text = format!("the string of field \"{}\" is not UTF-8; save the file in that encoding", field.name());
            TextError::new(offset, text)
        })
    }

    fn float(&mut self, field: &FieldDescriptor) -> Result<f64, TextError> {
        let negative = self.eat('-')?;
        let value = match &self.token {
            Token::Float(value) => *value,
            Token::Integer { value: Some(value), is_decimal: true } => *value as f64,
            Token::Identifier(name) if ["inf", "infinity"].iter().any(|word| name.eq_ignore_ascii_case(word)) => {
                f64::INFINITY
            }
            Token::Identifier(name) if name.eq_ignore_ascii_case("nan") => f64::NAN,
            _ => return self.no("double", field, "a decimal number"),
        };
        self.take()?;
        Ok(if negative { -value } else { value })
    }

    fn integer<T: TryFrom<i128>>(&mut self, field: &FieldDescriptor, what: &str) -> Result<T, TextError> {
        // A sign before a number that has none is no part of a number.
        let is_signed = T::try_from(-1).is_ok();
        let negative = is_signed && self.eat('-')?;
        let Token::Integer { value: magnitude, .. } = self.token else {
            return self.no("integer", field, what);
        };
        let value = magnitude.map(i128::from).map(|value| if negative { -value } else { value });
        let Some(converted) = value.and_then(|value| T::try_from(value).ok()) else {
            return self.out_of_range(field, what);
        };
        self.take()?;
        Ok(converted)
    }

    fn out_of_range<T>(&self, field: &FieldDescriptor, what: &str) -> Result<T, TextError> {
        self.wrong(format!("Integer out of range ({})", self.found()), field, what)
    }
}

/// A field that is not repeated may be given once, and only one field of a oneof.
fn check_unset(field: &FieldDescriptor, message: &DynamicMessage, offset: usize) -> Result<(), TextError> {
    if message.has_field(field) {
        let text = format!("Non-repeated field \"{}\" is specified multiple times", field.name());
        return Err(TextError::new(offset, text));
    }
    let Some(oneof) = field.containing_oneof() else {
        return Ok(());
    };
    match oneof.fields().find(|other| message.has_field(other)) {
        None => Ok(()),
        Some(other) => {
            let (name, other, oneof) = (field.name(), other.name(), oneof.name());
            let text = format!(
                "Field \"{name}\" is specified along with field \"{other}\", another member of oneof \"{oneof}\""
            );
            Err(TextError::new(offset, text))
        }
    }
}

fn map_entry(entry: Value) -> Option<(MapKey, Value)> {
    let Value::Message(entry) = entry else {
        return None;
    };
    let key = entry.get_field_by_name("key")?.into_owned().into_map_key()?;
    Some((key, entry.get_field_by_name("value")?.into_owned()))
}

fn unknown_field(descriptor: &MessageDescriptor, name: &str) -> String {
    let fields: Vec<_> = descriptor.fields().collect();
    let hint = nearest(name, fields.iter().map(|field| field.name())).map(suggestion).unwrap_or_default();
    format!("Message type \"{}\" has no field named \"{}\"{hint}", descriptor.full_name(), excerpt(name))
}
