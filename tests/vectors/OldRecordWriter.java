import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Iterator;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The part of RecordWriter that clients before headers and transactions can carry out. They stamp records themselves.
 *
 * Compiled when it is run, by the compiler that PySpark ships: that one knows no generics.
 */
public class OldRecordWriter {
    public static void main(String[] arguments) throws Exception {
        KafkaProducer producer = null;
        Iterator lines = Files.readAllLines(Paths.get(arguments[0])).iterator();
        while (lines.hasNext()) {
            String[] words = ((String) lines.next()).split("\t", -1);
            String verb = words[0];
            if (verb.equals("open")) {
                producer = new KafkaProducer(settings(words));
            } else if (verb.equals("send")) {
                Integer partition = Integer.valueOf(words[2]);
                producer.send(new ProducerRecord(words[1], partition, bytes(words[4]), bytes(words[5])));
            } else if (verb.equals("flush")) {
                producer.flush();
            } else if (verb.equals("pause")) {
                Thread.sleep(Long.parseLong(words[1]));
            } else if (verb.equals("close")) {
                producer.close();
            } else {
                throw new IllegalArgumentException(verb);
            }
        }
    }

    private static Properties settings(String[] words) {
        Properties settings = new Properties();
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        for (int i = 1; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    private static byte[] bytes(String hex) {
        if (hex.equals("-")) {
            return null;
        }
        byte[] content = new byte[hex.length() / 2];
        for (int i = 0; i < content.length; i++) {
            content[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return content;
    }
}
