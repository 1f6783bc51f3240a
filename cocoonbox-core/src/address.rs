//! Which addresses are public: the one table for all that dials where a user or a client says.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns whether an address is on the public network, so that whoever reaches it reaches nothing that this machine or
/// its network reaches alone. What IANA's special-purpose registries name is not, and an IPv6 address that carries an IPv4
/// one (mapped, compatible, translated, 6to4, Teredo) is as public as that one.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn within(address: Ipv4Addr, network: [u8; 4], bits: u32) -> bool {
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    u32::from(address) & mask == u32::from(Ipv4Addr::from(network)) & mask
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    const NOT: [([u8; 4], u32); 16] = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 31, 196, 0], 24),
        ([192, 52, 193, 0], 24),
        ([192, 88, 99, 0], 24),
        ([192, 168, 0, 0], 16),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        // multicast, what is kept for later, and broadcast
        ([224, 0, 0, 0], 3),
    ];
    !NOT.iter().any(|(network, bits)| within(address, *network, *bits))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let tail = |from: usize| {
        let [a, b] = segments[from].to_be_bytes();
        let [c, d] = segments[from + 1].to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        // mapped, compatible (and with it the unspecified and the loopback address), translated, NAT64
        [0, 0, 0, 0, 0, 0xffff | 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            is_public_v4(tail(6))
        }
        // 6to4
        [0x2002, ..] => is_public_v4(tail(1)),
        // documentation
        [0x2001, 0xdb8, ..] => false,
        // Teredo and the rest of the protocols' block
        [0x2001, second, ..] if second < 0x200 => false,
        // documentation again
        [0x3fff, second, ..] if second < 0x1000 => false,
        // of all the rest only global unicast is given out: no local NAT64, no segment routing, nothing local
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_public_is_known_in_every_form() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:0:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            let address: IpAddr = text.parse().expect("an address");
            assert!(!is_public(address), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            let address: IpAddr = text.parse().expect("an address");
            assert!(is_public(address), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_that_carries_another_is_no_more_public(bits: u32) {
            let inner = Ipv4Addr::from(bits);
            let public = is_public(inner.into());
            let [a, b, c, d] = inner.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for carrier in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(is_public(carrier.into()), public, "{}", carrier);
            }
        }

        #[test]
        fn what_the_standard_library_knows_is_not_public(bits: u128) {
            let v4 = Ipv4Addr::from(bits as u32);
            let special = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_broadcast()
                || v4.is_documentation() || v4.is_multicast() || v4.is_unspecified();
            prop_assert!(!(special && is_public(v4.into())), "{}", v4);
            let v6 = Ipv6Addr::from(bits);
            let special = v6.is_loopback() || v6.is_multicast() || v6.is_unique_local() || v6.is_unicast_link_local();
            prop_assert!(!(special && is_public(v6.into())), "{}", v6);
        }
    }
}
