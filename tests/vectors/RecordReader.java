import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/**
 * BOOTSTRAP ISOLATION FILE OUT: reads the partitions that FILE names (lines "topic partition") from their beginning to
 * their end of now, and writes "topic partition offset timestamp key value headers" to OUT for each record.
 *
 * Compiled when it is run, by the compiler that PySpark ships: that one knows no generics.
 */
public class RecordReader {
    private static final char[] DIGITS = "0123456789abcdef".toCharArray();

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", arguments[1]);
        settings.put("enable.auto.commit", "false");
        settings.put("check.crcs", "true");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        List partitions = new ArrayList();
        Iterator lines = Files.readAllLines(Paths.get(arguments[2])).iterator();
        while (lines.hasNext()) {
            String[] words = ((String) lines.next()).split(" ");
            partitions.add(new TopicPartition(words[0], Integer.parseInt(words[1])));
        }
        BufferedWriter out = Files.newBufferedWriter(Paths.get(arguments[3]));
        KafkaConsumer consumer = new KafkaConsumer(settings);
        try {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map ends = consumer.endOffsets(partitions);
            while (!isAtEnd(consumer, ends)) {
                Iterator records = consumer.poll(Duration.ofMillis(200)).iterator();
                while (records.hasNext()) {
                    out.write(line((ConsumerRecord) records.next()));
                    out.newLine();
                }
            }
        } finally {
            consumer.close();
        }
        out.flush();
    }

    private static boolean isAtEnd(KafkaConsumer consumer, Map ends) {
        Iterator entries = ends.entrySet().iterator();
        while (entries.hasNext()) {
            Map.Entry entry = (Map.Entry) entries.next();
            if (consumer.position((TopicPartition) entry.getKey()) < ((Long) entry.getValue()).longValue()) {
                return false;
            }
        }
        return true;
    }

    private static String line(ConsumerRecord record) {
        StringBuilder text = new StringBuilder();
        text.append(record.topic()).append(' ').append(record.partition()).append(' ');
        text.append(record.offset()).append(' ').append(record.timestamp()).append(' ');
        hex(text, (byte[]) record.key()).append(' ');
        hex(text, (byte[]) record.value()).append(' ');
        Header[] headers = record.headers().toArray();
        for (int i = 0; i < headers.length; i++) {
            if (i > 0) {
                text.append(',');
            }
            try {
                hex(text, headers[i].key().getBytes("UTF-8")).append('=');
            } catch (java.io.UnsupportedEncodingException impossible) {
                throw new IllegalStateException(impossible);
            }
            hex(text, headers[i].value());
        }
        return text.toString();
    }

    private static StringBuilder hex(StringBuilder text, byte[] content) {
        if (content == null) {
            return text.append('-');
        }
        for (int i = 0; i < content.length; i++) {
            text.append(DIGITS[(content[i] >> 4) & 15]).append(DIGITS[content[i] & 15]);
        }
        return text;
    }
}
