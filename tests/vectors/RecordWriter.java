import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;

/**
 * FILE: carries out the lines of FILE, one word after the other separated by tabs. "open SETTING=VALUE..." begins with
 * a new producer, "close" ends it; "init", "begin", "commit", "abort" and "flush" are the producer's,
 * "pause" waits for so many ms; "send topic
 * partition timestamp key value headers" has bytes in hex, "-" for null, headers as "key=value,...".
 *
 * Compiled when it is run, by the compiler that PySpark ships: that one knows no generics.
 */
public class RecordWriter {
    public static void main(String[] arguments) throws Exception {
        KafkaProducer producer = null;
        List sent = new ArrayList();
        Iterator lines = Files.readAllLines(Paths.get(arguments[0])).iterator();
        while (lines.hasNext()) {
            String[] words = ((String) lines.next()).split("\t", -1);
            String verb = words[0];
            if (verb.equals("open")) {
                producer = new KafkaProducer(settings(words));
            } else if (verb.equals("send")) {
                sent.add(producer.send(record(words)));
            } else if (verb.equals("flush")) {
                producer.flush();
            } else if (verb.equals("init")) {
                producer.initTransactions();
            } else if (verb.equals("begin")) {
                producer.beginTransaction();
            } else if (verb.equals("commit")) {
                producer.commitTransaction();
            } else if (verb.equals("abort")) {
                producer.abortTransaction();
            } else if (verb.equals("pause")) {
                Thread.sleep(Long.parseLong(words[1]));
            } else if (verb.equals("close")) {
                producer.close();
                Iterator futures = sent.iterator();
                while (futures.hasNext()) {
                    ((java.util.concurrent.Future) futures.next()).get();
                }
                sent.clear();
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

    private static ProducerRecord record(String[] words) {
        List headers = new ArrayList();
        String[] pairs = words[6].split(",");
        for (int i = 0; i < pairs.length; i++) {
            if (pairs[i].length() > 0) {
                String[] pair = pairs[i].split("=", -1);
                headers.add(new RecordHeader(new String(bytes(pair[0])), bytes(pair[1])));
            }
        }
        Integer partition = Integer.valueOf(words[2]);
        return new ProducerRecord(
            words[1], partition, Long.valueOf(words[3]), bytes(words[4]), bytes(words[5]), headers);
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
