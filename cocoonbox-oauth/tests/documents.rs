//! Clients' metadata documents, from servers with real TLS on this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use cocoonbox_core::ManualClock;
use cocoonbox_oauth::http::DocumentSource as _;
use cocoonbox_oauth::testkit::AT;
use cocoonbox_oauth::{Client, ClientError, ClientId, DialRules, Documents, Resolve};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const HOST: &str = "agent.example";

/// Answers with one address after the other, the last one again and again.
#[derive(Debug)]
struct Script(Mutex<Vec<Vec<SocketAddr>>>);

#[async_trait]
impl Resolve for Script {
    async fn resolve(&self, _: &str, _: u16) -> std::io::Result<Vec<SocketAddr>> {
        let mut script = self.0.lock().expect("no panic");
        Ok(if script.len() > 1 { script.remove(0) } else { script[0].clone() })
    }
}

type Answers = Box<dyn Fn(u16) -> Vec<u8> + Send + Sync>;

struct Stand {
    port: u16,
    tls: Arc<ClientConfig>,
    clock: Arc<ManualClock>,
    asked: Arc<AtomicUsize>,
}

/// Serves `answer`, head and body, to everybody, as `name`.
async fn stand(name: &str, answer: impl Fn(u16) -> Vec<u8> + Send + Sync + 'static) -> Stand {
    let root_key = KeyPair::generate().expect("a key");
    let mut root = CertificateParams::new(Vec::new()).expect("parameters");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_certificate = root.self_signed(&root_key).expect("a root");
    let issuer = Issuer::new(root, root_key);
    let key = KeyPair::generate().expect("a key");
    let leaf = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    let leaf = leaf.signed_by(&key, &issuer).expect("a leaf");

    let provider = Arc::new(default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(root_certificate.der().clone()).expect("a root");
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .expect("a certificate");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (acceptor, asked) = (TlsAcceptor::from(Arc::new(server)), Arc::new(AtomicUsize::new(0)));
    let (counter, answer) = (asked.clone(), Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, counter, answer) = (acceptor.clone(), counter.clone(), answer.clone());
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut request = [0_u8; 4096];
                let _ = stream.read(&mut request).await;
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(&answer(port)).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    Stand { port, tls: Arc::new(client), clock: Arc::new(ManualClock::new(AT)), asked }
}

fn ok(kind: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn document(port: u16) -> String {
    format!(
        r#"{{"client_id":"https://{HOST}:{port}/client.json","client_name":"Agent","redirect_uris":["http://127.0.0.1/cb"]}}"#
    )
}

impl Stand {
    fn id(&self) -> ClientId {
        format!("https://{HOST}:{}/client.json", self.port).parse().expect("an id")
    }

    fn here(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn documents(&self, script: Vec<Vec<SocketAddr>>, rules: DialRules) -> Documents {
        Documents::new(Arc::new(Script(Mutex::new(script))), rules, self.tls.clone(), self.clock.clone())
    }

    async fn fetched(&self) -> Result<Client, ClientError> {
        let rules = DialRules::default().with(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.documents(vec![vec![self.here()]], rules).client(&self.id()).await
    }
}

#[tokio::test]
async fn a_document_is_fetched_verified_and_kept() {
    let stand = stand(HOST, |port| ok("application/json; charset=utf-8", &document(port))).await;
    let rules = DialRules::default().with(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let documents = stand.documents(vec![vec![stand.here()]], rules);
    for _ in 0..3 {
        let client = documents.client(&stand.id()).await.expect("a client");
        assert_eq!((client.name.as_str(), client.verified_host().as_deref()), ("Agent", Some(HOST)));
    }
    assert_eq!(stand.asked.load(Ordering::SeqCst), 1);
    stand.clock.advance(Duration::from_mins(5));
    documents.client(&stand.id()).await.expect("a client");
    assert_eq!(stand.asked.load(Ordering::SeqCst), 2, "it is read anew in time");
}

#[tokio::test]
async fn what_is_not_public_is_not_dialled() {
    let stand = stand(HOST, |port| ok("application/json", &document(port))).await;
    let documents = stand.documents(vec![vec![stand.here()]], DialRules::default());
    assert!(documents.client(&stand.id()).await.is_err());
    // one bad address among good ones
    let public: SocketAddr = "192.0.43.8:443".parse().expect("an address");
    for bad in ["10.0.0.1:443", "169.254.169.254:443", "[::1]:443", "[fd00::1]:443", "[::ffff:127.0.0.1]:443"]
    {
        let script = vec![vec![public, bad.parse().expect("an address")]];
        let documents = stand.documents(script, DialRules::default());
        assert!(documents.client(&stand.id()).await.is_err(), "{bad}");
    }
    assert_eq!(stand.asked.load(Ordering::SeqCst), 0);
    // the control
    stand.fetched().await.expect("with the rule for this machine it is dialled");
}

#[tokio::test]
async fn a_name_is_asked_for_its_addresses_once() {
    // a name that is public when it is judged and private when it is dialled is asked once: what is judged is dialled
    let stand = stand(HOST, |port| ok("application/json", &document(port))).await;
    let elsewhere = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 2), 9));
    let rules = DialRules::default().with(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let documents = stand.documents(vec![vec![stand.here()], vec![elsewhere]], rules);
    documents.client(&stand.id()).await.expect("the judged address is dialled");
    assert_eq!(stand.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_is_no_good_document_is_refused() {
    let body = |port| document(port);
    let cases: Vec<(&str, Answers)> = vec![
        ("another site's certificate", Box::new(move |port| ok("application/json", &body(port)))),
        (
            "a redirect",
            Box::new(|_| {
                b"HTTP/1.1 302 Found\r\nlocation: https://10.0.0.1/\r\ncontent-length: 0\r\n\r\n".to_vec()
            }),
        ),
        ("an error", Box::new(|_| b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_vec())),
        ("a page", Box::new(move |port| ok("text/html", &body(port)))),
        ("no JSON", Box::new(|_| ok("application/json", "{"))),
        (
            "another's",
            Box::new(|port| ok("application/json", &document(port).replace("/client.json", "/other.json"))),
        ),
        (
            "too much",
            Box::new(|port| {
                let long = format!(r#","x":"{}"}}"#, "y".repeat(6000));
                ok("application/json", &document(port).replace('}', &long))
            }),
        ),
        (
            "without an end",
            Box::new(|_| {
                let mut endless = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_vec();
                endless.extend(vec![b' '; 100_000]);
                endless
            }),
        ),
        (
            "cut off",
            Box::new(|_| {
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{".to_vec()
            }),
        ),
        ("no HTTP", Box::new(|_| b"hello\r\n\r\n".to_vec())),
        ("nothing", Box::new(|_| Vec::new())),
    ];
    for (number, (what, answer)) in cases.into_iter().enumerate() {
        let name = if number == 0 { "other.example" } else { HOST };
        let stand = stand(name, answer).await;
        assert!(stand.fetched().await.is_err(), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let here = listener.local_addr().expect("an address");
    let other = stand(HOST, |_| Vec::new()).await;
    let rules = DialRules::default().with(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let documents = other.documents(vec![vec![here]], rules);
    let begun = tokio::time::Instant::now();
    assert!(documents.client(&other.id()).await.is_err());
    assert!(begun.elapsed() >= Duration::from_secs(10));
    drop(listener);
}
