use crate::run::{Run, output};
use crate::server::Server;
use crate::tool::python;

/// The password of the person of the stories.
pub const PASSWORD: &str = "a password of the stories";

/// Has somebody at a browser do something: the words of `clients/person.py`.
pub fn person(arguments: &[&str]) -> Run {
    output(python("person.py").args(arguments).env("PERSON_PASSWORD", PASSWORD), b"")
}

/// Returns what belongs in `BROWSER` for our person to be the browser, who answers with `verb` (`allow` or `deny`); it
/// needs [`PASSWORD`] in `PERSON_PASSWORD`.
pub fn browser(verb: &str) -> String {
    let browser = python("person.py");
    let words = std::iter::once(browser.get_program()).chain(browser.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("{} {verb} %s", words.join(" "))
}

/// Starts a server whose administrator has chosen [`PASSWORD`] by the link of the first start.
///
/// # Panics
/// When it printed no link.
pub fn server_of_a_person() -> Server {
    let server = Server::start();
    let log = server.log();
    let link = log.split_whitespace().find(|word| word.contains("#link=cbl_")).expect("a link is printed");
    person(&["password", &server.endpoint(), link]).ok();
    server
}
