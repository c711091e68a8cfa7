//! Compiles ONNX's protobuf messages with a compiler written in Rust: no `protoc` is needed.

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/onnx.proto", "proto/onnx_data.proto"], ["proto"])?;
    let mut messages = Messages::default();
    for file in &descriptors.file {
        for message in &file.message_type {
            messages.add(&format!(".{}", file.package()), "crate::onnx::proto", message);
        }
    }
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("layouts.rs"), messages.table()?)?;
    prost_build::Config::new()
        // Tensor data stays a reference into the model's file.
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}

/// Every message with its fields, as text of Rust: what the import needs to know how much memory a file
/// asks for before it is decoded.
#[derive(Default)]
struct Messages(Vec<Message>);

struct Message {
    /// `.onnx.TypeProto.Tensor`
    name: String,
    /// `crate::onnx::proto::type_proto::Tensor`
    rust: String,
    fields: Vec<(i32, Kind)>,
}

enum Kind {
    Message(String),
    /// Repeated elements of so many bytes.
    List(&'static str),
}

impl Messages {
    fn add(&mut self, scope: &str, module: &str, message: &prost_types::DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        let inner = format!("{module}::{}", snake_case(message.name()));
        for nested in &message.nested_type {
            self.add(&name, &inner, nested);
        }
        let fields = message.field.iter().filter_map(|field| {
            let is_list = field.label().as_str_name() == "LABEL_REPEATED";
            let kind = match field.r#type().as_str_name() {
                "TYPE_MESSAGE" => Kind::Message(field.type_name().to_owned()),
                "TYPE_STRING" if is_list => Kind::List("List::Texts(size_of::<String>())"),
                "TYPE_BYTES" if is_list => Kind::List("List::Texts(size_of::<bytes::Bytes>())"),
                "TYPE_INT64" | "TYPE_UINT64" if is_list => Kind::List("List::Varints(8)"),
                "TYPE_INT32" | "TYPE_UINT32" | "TYPE_ENUM" if is_list => Kind::List("List::Varints(4)"),
                _ if is_list => Kind::List("List::Fixed"),
                _ => return None,
            };
            Some((field.number(), kind))
        });
        let rust = format!("{module}::{}", message.name());
        self.0.push(Message { fields: fields.collect(), name, rust });
    }

    fn table(&self) -> Result<String, Box<dyn Error>> {
        let mut text = "const LAYOUTS: &[Layout] = &[\n".to_owned();
        for message in &self.0 {
            let name = message.name.trim_start_matches(".onnx.");
            write!(text, "    Layout {{ name: \"{name}\", size: size_of::<{}>(), fields: &[", message.rust)?;
            for (number, kind) in &message.fields {
                match kind {
                    Kind::List(list) => write!(text, "({number}, Field::List({list})), ")?,
                    Kind::Message(name) => {
                        let index = self.0.iter().position(|message| message.name == *name);
                        let index = index.ok_or_else(|| format!("no message {name}"))?;
                        write!(text, "({number}, Field::Message({index})), ")?;
                    }
                }
            }
            text.push_str("] },\n");
        }
        text.push_str("];\n");
        Ok(text)
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
