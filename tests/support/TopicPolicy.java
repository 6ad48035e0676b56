import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** A class for `create.topic.policy.class.name`: the broker's settings `policy.least.NAME` are minimums. */
public class TopicPolicy implements CreateTopicPolicy {
    private final Map<String, Long> least = new TreeMap<>();

    @Override
    public void configure(Map<String, ?> configs) {
        for (Map.Entry<String, ?> one : configs.entrySet()) {
            if (one.getKey().startsWith("policy.least.")) {
                least.put(one.getKey().substring("policy.least.".length()), Long.parseLong(one.getValue().toString()));
            }
        }
    }

    @Override
    public void validate(CreateTopicPolicy.RequestMetadata topic) {
        Map<String, String> asked = new TreeMap<>(topic.configs());
        if (topic.replicationFactor() != null) {
            asked.put("replication.factor", topic.replicationFactor().toString());
        }
        check(least, asked);
    }

    static void check(Map<String, Long> least, Map<String, String> asked) {
        for (Map.Entry<String, Long> one : least.entrySet()) {
            String value = asked.get(one.getKey());
            if (value != null && Long.parseLong(value) < one.getValue()) {
                throw new PolicyViolationException(
                    "Config property '" + one.getKey() + "' with value '" + value + "' exceeded min limit of "
                        + one.getValue() + ".");
            }
        }
    }

    @Override
    public void close() {
    }

    /** The same for `alter.config.policy.class.name`. */
    public static class OfChanges implements AlterConfigPolicy {
        private final TopicPolicy limits = new TopicPolicy();

        @Override
        public void configure(Map<String, ?> configs) {
            limits.configure(configs);
        }

        @Override
        public void validate(AlterConfigPolicy.RequestMetadata change) {
            check(limits.least, change.configs());
        }

        @Override
        public void close() {
        }
    }
}
