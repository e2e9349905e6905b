# Records in arrays and hashes: filled, sorted, joined into one string and split again.
# Argument: records.
use strict;
use warnings;

my $count = shift // 300_000;
my @records;
my %groups;
my $at = 1;
for my $n (1 .. $count) {
    $at = ($at * 48271) % 2147483647;
    my $record = { number => $n, key => $at };
    push @records, $record;
    push @{ $groups{ $n >> 8 } }, $record;
}
my $text = join ",", map { "$_->{number}:$_->{key}" } @records;
my @back = split /,/, $text;
my $wrong = 0;
for my $index (0 .. $#back) {
    my $record = $records[$index];
    $wrong++ if $back[$index] ne "$record->{number}:$record->{key}";
}
my $sum = 0;
for my $group (sort { $a <=> $b } keys %groups) {
    $sum = ($sum * 31 + $_->{key}) % 1000000007 for @{ $groups{$group} };
}
my @sorted = sort { $a <=> $b } map { $_->{key} } @records;
$sorted[$_ - 1] <= $sorted[$_] or $wrong++ for 1 .. $#sorted;
print length($text), " bytes, ", scalar(keys %groups), " groups, sum $sum, least $sorted[0], greatest $sorted[-1], wrong $wrong\n";
exit($wrong ? 1 : 0);
