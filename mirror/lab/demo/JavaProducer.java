import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * TOPIC FILE COUNT SETTING=VALUE...: sends the lines of a file, over and over, until COUNT records are acknowledged.
 *
 * Compiled when it is run, by the compiler that PySpark ships: that one knows no generics.
 */
public class JavaProducer {
    public static void main(String[] arguments) throws Exception {
        List lines = Files.readAllLines(Paths.get(arguments[1]));
        int count = Integer.parseInt(arguments[2]);
        Properties settings = new Properties();
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        KafkaProducer producer = new KafkaProducer(settings);
        try {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord(arguments[0], lines.get(i % lines.size())));
            }
        } finally {
            producer.close();
        }
    }
}
