import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** Starts the virtual machine, compiles this file in memory, and makes garbage enough for some collections. */
public class Startup {
    public static void main(String[] arguments) {
        Map<Integer, List<String>> groups = new HashMap<>();
        for (int round = 0; round < 30; round++) {
            int shift = round;
            List<String> words =
                IntStream.range(0, 20000).mapToObj(n -> "word " + (n ^ shift)).collect(Collectors.toList());
            for (String word : words) {
                groups.computeIfAbsent(word.hashCode() & 255, key -> new ArrayList<>()).add(word);
            }
            groups.values().removeIf(list -> list.size() > 4000);
        }
        System.out.println(groups.values().stream().mapToInt(List::size).sum());
    }
}
