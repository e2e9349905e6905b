import java.util.HashMap;
import java.util.Map;
import java.util.stream.LongStream;

/** A HashMap, filled, thinned out, read in another order and by parallel threads. Argument: entries. */
public final class MapWork {
    public static void main(String[] arguments) {
        int entries = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 1_000_000;
        Map<Integer, String> table = new HashMap<>();
        for (int n = 0; n < entries; n++) {
            table.put(n, value(n));
        }
        for (int n = 0; n < entries; n += 3) {
            table.remove(n);
        }
        long at = 1;
        int wrong = 0;
        long sum = 0;
        for (int round = 0; round < entries / 20; round++) {
            at = at * 48271 % 2147483647;
            int n = (int) (at % entries);
            String found = table.get(n);
            String expected = n % 3 == 0 ? null : value(n);
            if (found == null ? expected != null : !found.equals(expected)) {
                wrong++;
            }
            sum += found == null ? 0 : found.hashCode();
        }
        long parallel = LongStream.range(0, entries).parallel()
                .map(n -> table.getOrDefault((int) n, "").hashCode()).sum();
        System.out.println(table.size() + " entries, sum " + sum + ", parallel " + parallel + ", wrong " + wrong);
        System.exit(wrong == 0 ? 0 : 1);
    }

    private static String value(int n) {
        return "value " + n * 7L;
    }
}
