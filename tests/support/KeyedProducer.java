import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.FileInputStream;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * TOPIC FILE COUNT SETTING=VALUE...: sends COUNT records, each with a key of the file and its number as the value. A key
 * is its length, 4 bytes, and its bytes; without a key where the length is -1.
 *
 * Compiled when it is run, by the compiler that PySpark ships: that one knows no generics.
 */
public class KeyedProducer {
    public static void main(String[] arguments) throws Exception {
        DataInputStream keys = new DataInputStream(new BufferedInputStream(new FileInputStream(arguments[1])));
        int count = Integer.parseInt(arguments[2]);
        Properties settings = new Properties();
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        KafkaProducer producer = new KafkaProducer(settings);
        try {
            for (int i = 0; i < count; i++) {
                int length = keys.readInt();
                byte[] key = null;
                if (length >= 0) {
                    key = new byte[length];
                    keys.readFully(key);
                }
                producer.send(new ProducerRecord(arguments[0], key, String.valueOf(i).getBytes()));
            }
        } finally {
            producer.close();
            keys.close();
        }
    }
}
