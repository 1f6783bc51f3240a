# A way out, if there is one. `listen NAME` answers on a TCP port of the loopback (printed first) and on the abstract
# unix socket NAME; `dial tcp PORT` and `dial abstract NAME` print what they hear and fail when nothing answers.
use strict;
use warnings;
use IO::Handle;
use IO::Select;
use Socket;

my ($verb, @words) = @ARGV;
STDOUT->autoflush(1);

if ($verb eq 'listen') {
    socket(my $tcp, PF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    bind($tcp, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\n";
    socket(my $abstract, PF_UNIX, SOCK_STREAM, 0) or die "socket: $!\n";
    bind($abstract, pack_sockaddr_un("\0$words[0]")) or die "bind: $!\n";
    listen($_, 5) or die "listen: $!\n" for $tcp, $abstract;
    my ($port) = unpack_sockaddr_in(getsockname($tcp));
    print "$port\n";
    my $select = IO::Select->new($tcp, $abstract);
    while (my @ready = $select->can_read) {
        for my $listener (@ready) {
            accept(my $peer, $listener) or next;
            syswrite($peer, "the host answers\n");
            close($peer);
        }
    }
} elsif ($verb eq 'dial') {
    my ($kind, $where) = @words;
    alarm 5;
    socket(my $peer, $kind eq 'tcp' ? PF_INET : PF_UNIX, SOCK_STREAM, 0) or die "socket: $!\n";
    my $address = $kind eq 'tcp' ? pack_sockaddr_in($where, INADDR_LOOPBACK) : pack_sockaddr_un("\0$where");
    connect($peer, $address) or do { print "$!\n"; exit 1 };
    my $line = <$peer>;
    print defined $line ? $line : "nothing\n";
    exit(defined $line ? 0 : 1);
} else {
    die "usage: way.pl listen NAME | dial tcp PORT | dial abstract NAME\n";
}
