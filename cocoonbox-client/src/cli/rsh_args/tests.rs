//! How rsync, git, scp and sftp really call their remote shell.

use proptest::prelude::*;

use super::*;

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn words(text: &[&str]) -> Vec<OsString> {
    text.iter().map(OsString::from).collect()
}

fn named(name: &str) -> Option<BoxRef> {
    name.parse().ok()
}

fn shell(line: &str) -> RshCommand {
    RshCommand::Shell(line.into())
}

fn argv(text: &[&str]) -> RshCommand {
    RshCommand::Argv(words(text))
}

#[test]
fn rsh_reads_what_people_rsync_and_git_write() -> Outcome {
    let cases: &[(&[&str], Option<&str>, TtyWish, RshCommand)] = &[
        (&[], None, TtyWish::Auto, RshCommand::Login),
        (&["-t"], None, TtyWish::Force, RshCommand::Login),
        (&["--", "true"], None, TtyWish::Auto, argv(&["true"])),
        (&["--"], None, TtyWish::Auto, RshCommand::Login),
        (
            &["--box", "work", "--", "ls", "-l", "a b"],
            Some("work"),
            TtyWish::Auto,
            argv(&["ls", "-l", "a b"]),
        ),
        (&["--box=work", "-T", "--", "--"], Some("work"), TtyWish::Never, argv(&["--"])),
        (&["work"], Some("work"), TtyWish::Auto, RshCommand::Login),
        (&["root@work", "--", "a", "b"], Some("work"), TtyWish::Auto, argv(&["a", "b"])),
        (&["work", "ls", "*.txt"], Some("work"), TtyWish::Auto, shell("ls *.txt")),
        (&["work", "-t", "top", "-d", "1"], Some("work"), TtyWish::Force, shell("top -d 1")),
        (&["--box", "work", "ignored", "echo", "hi"], Some("work"), TtyWish::Auto, shell("echo hi")),
        (&["--box", "cb-abcdefghij", "h"], Some("cb-abcdefghij"), TtyWish::Auto, RshCommand::Login),
        // rsync -e 'cocoonbox rsh' a user@work:b
        (
            &["-l", "user", "work", "rsync", "--server", "-vlogDtpre.iLsfxCIvu", ".", "b"],
            Some("work"),
            TtyWish::Auto,
            shell("rsync --server -vlogDtpre.iLsfxCIvu . b"),
        ),
        (
            &["work", "rsync", "--server", "--sender", "-e.L", ".", "a b"],
            Some("work"),
            TtyWish::Auto,
            shell("rsync --server --sender -e.L . a b"),
        ),
        // GIT_SSH_VARIANT=simple, with and without --box
        (
            &["--box", "work", "host", "git-upload-pack '/workspace/p'"],
            Some("work"),
            TtyWish::Auto,
            shell("git-upload-pack '/workspace/p'"),
        ),
        (&["git@work", "git-receive-pack 'p'"], Some("work"), TtyWish::Auto, shell("git-receive-pack 'p'")),
    ];
    for (text, name, tty, command) in cases {
        let args = RshArgs::parse(&words(text))?;
        let expected =
            RshArgs { name: name.and_then(named), tty: *tty, command: command.clone(), ..RshArgs::default() };
        assert_eq!(args, expected, "{text:?}");
    }
    Ok(())
}

#[test]
fn git_as_ssh_sends_its_protocol_and_asks_for_the_configuration() -> Outcome {
    // GIT_SSH_VARIANT=ssh with a port
    let args = RshArgs::parse(&words(&[
        "-o",
        "SendEnv=GIT_PROTOCOL",
        "-p",
        "2222",
        "-4",
        "git@work",
        "git-upload-pack '/p'",
    ]))?;
    assert_eq!(args.send_env, ["GIT_PROTOCOL"]);
    assert_eq!((args.name, args.command), (named("work"), shell("git-upload-pack '/p'")));
    // GIT_SSH_VARIANT=auto asks first
    let asked = RshArgs::parse(&words(&["-G", "-o", "SendEnv=GIT_PROTOCOL", "work"]));
    assert_eq!(asked, Err(RshError::Configuration("work".to_owned())));
    Ok(())
}

#[test]
fn scp_and_sftp_find_what_they_expect_of_ssh() -> Outcome {
    let cases: &[(&[&str], RshCommand)] = &[
        // scp (sftp underneath, OpenSSH 9)
        (
            &[
                "-x",
                "-oPermitLocalCommand=no",
                "-oClearAllForwardings=yes",
                "-oRemoteCommand=none",
                "-oRequestTTY=no",
                "-oForwardAgent=no",
                "-l",
                "user",
                "-s",
                "--",
                "work",
                "sftp",
            ],
            RshCommand::Sftp,
        ),
        // scp -O (the old protocol)
        (
            &["-x", "-oPermitLocalCommand=no", "-oRequestTTY=no", "-p", "22", "--", "work", "scp -t ~/a"],
            shell("scp -t ~/a"),
        ),
        // sftp -S
        (
            &[
                "-oForwardX11 no",
                "-oPermitLocalCommand no",
                "-oClearAllForwardings yes",
                "-oProtocol 2",
                "-s",
                "work",
                "sftp",
            ],
            RshCommand::Sftp,
        ),
        // an option after the host, as ssh allows
        (&["work", "-s", "sftp"], RshCommand::Sftp),
        (&["-4Cqvp22", "-F", "/dev/null", "-i", "key", "-E", "log", "-n", "work", "true"], shell("true")),
        (&["work", "--", "echo", "a"], shell("echo a")),
    ];
    for (text, command) in cases {
        let args = RshArgs::parse_as_ssh(&words(text))?;
        assert_eq!((args.name, &args.command), (named("work"), command), "{text:?}");
    }
    Ok(())
}

#[test]
fn variables_are_sent_by_name_or_with_a_value() -> Outcome {
    let args = RshArgs::parse(&words(&[
        "-oSendEnv=LANG LC_*",
        "-o",
        "SetEnv A=b=c",
        "-oSetEnv=B=\"x y\"",
        "-oStdinNull=yes",
        "work",
    ]))?;
    assert_eq!(args.send_env, ["LANG", "LC_*"]);
    assert_eq!(args.set_env, [("A".to_owned(), "b=c".into()), ("B".to_owned(), "x y".into())]);
    assert!(args.no_stdin);
    Ok(())
}

#[test]
fn wrong_words_are_named() {
    for (text, part) in [
        (&["--box"][..], "--box needs a value"),
        (&["--box", "A/b"], "--box: neither"),
        (&["--bux=x"], "no option --bux"),
        (&["-p"], "-p needs a value"),
        (&["-L", "1:a:2", "work"], "forwards nothing"),
        (&["-N", "work"], "forwards nothing"),
        (&["-Z"], "no option -Z"),
        (&["-s", "work", "netconf"], "the only subsystem is sftp"),
        (&["-s", "work"], "the only subsystem is sftp"),
        (&["user@192.168.0.1:x", "ls"], "names no box"),
        (&["--json=1"], "takes no value"),
        (&["-oSetEnv=x", "work"], "use NAME=VALUE"),
        (&["-oSetEnv==x", "work"], "use NAME=VALUE"),
    ] {
        match RshArgs::parse(&words(text)) {
            Err(RshError::Usage(message)) => assert!(message.contains(part), "{text:?}: {message}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }
    assert_eq!(RshArgs::parse(&words(&["--help"])), Err(RshError::Help));
    assert_eq!(RshArgs::parse(&words(&["-V"])), Err(RshError::Version));
}

proptest! {
    #[test]
    fn no_words_crash_the_grammar(text in proptest::collection::vec("[-a-zA-Z@=:. ]{0,6}", 0..8)) {
        let words: Vec<OsString> = text.iter().map(OsString::from).collect();
        let _ = RshArgs::parse(&words);
        let _ = RshArgs::parse_as_ssh(&words);
    }

    #[test]
    fn what_follows_two_dashes_is_exact(text in proptest::collection::vec(".{0,8}", 1..6)) {
        let exact: Vec<OsString> = text.iter().map(OsString::from).collect();
        let mut all = words(&["--box", "work", "--"]);
        all.extend(exact.clone());
        let args = RshArgs::parse(&all);
        prop_assert_eq!(args.map(|args| args.command), Ok(RshCommand::Argv(exact)));
    }
}
