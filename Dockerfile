# One image for `mirror`, for a Spark master and workers that run its tasks, and for executors on Kubernetes: Debian's
# Python, a Java of the modules that Spark uses, Spark's jars as they come with PySpark, and mirror by its lock.
#
#     DOCKER_BUILDKIT=1 docker build --tag mirror:0.1.0 .
#
# Where packages come from an index of one's own, or through a proxy with a certificate of its own:
#     DOCKER_BUILDKIT=1 docker build --secret id=pip.conf,src=pip.conf --secret id=ca.pem,src=ca.pem \
#         --tag mirror:0.1.0 .
# (containers/own-index.yaml does the same for Compose.) Neither is kept in the image. Such a pip.conf names the certificate as /run/secrets/ca.pem.
ARG BASE=debian:12.13-slim

FROM ${BASE} AS java
RUN apt-get update \
 && apt-get install --yes --no-install-recommends binutils openjdk-17-jdk-headless
# What `jdeps` finds in PySpark's jars, but for the modules of debuggers and of javadoc, and what is looked up by name:
# jdk.incubator.vector, which Spark's own options for Java ask for, elliptic curves for TLS, character sets, and so on.
# -Xshare:dump makes the archive of classes that a JVM starts faster with, and that jlink leaves out.
RUN jlink --strip-debug --no-header-files --no-man-pages --compress=2 --output /opt/java --add-modules \
java.compiler,java.desktop,java.instrument,java.logging,java.management,java.management.rmi,java.naming,java.net.http,\
java.prefs,java.rmi,java.scripting,java.security.jgss,java.security.sasl,java.sql,java.sql.rowset,\
java.transaction.xa,java.xml,java.xml.crypto,jdk.attach,jdk.charsets,jdk.crypto.cryptoki,jdk.crypto.ec,\
jdk.dynalink,jdk.httpserver,jdk.incubator.vector,jdk.jfr,jdk.localedata,jdk.management,jdk.management.agent,\
jdk.naming.dns,jdk.net,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.xml.dom,jdk.zipfs \
 && /opt/java/bin/java -Xshare:dump

FROM ${BASE} AS python
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/mirror
ENV PIP_PYTHON=/opt/mirror/bin/python PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/var/cache/pip
COPY requirements.lock /src/
# The lock changes seldom, so its layer comes first. What is left out of it again is a third of Spark that no part of
# mirror loads (machine learning, Hive, Spark Connect, RocksDB), examples, and others' own tests.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca.pem \
    --mount=type=cache,target=/var/cache/pip \
    /opt/pip/bin/pip install --require-hashes --requirement /src/requirements.lock \
 && cd /opt/mirror/lib/python3*/site-packages \
 && rm -rf pyspark/examples pyspark/data pyspark/jars/connect-repl numba/tests pyarrow/tests pyarrow/include \
 && find numpy -type d -name tests -prune -exec rm -rf {} + \
 && cd pyspark/jars \
 && rm algebra_* arpack* blas-* breeze* cats-kernel_* datanucleus-* derby* hive-beeline-* hive-cli-* hive-exec-* \
    hive-jdbc-* hive-metastore-* lapack-* rocksdbjni-* spark-connect_* spark-hive* spark-mllib_* spire*
COPY pyproject.toml README.md LICENSE /src/
COPY mirror /src/mirror
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=ca.pem \
    --mount=type=cache,target=/var/cache/pip \
    /opt/pip/bin/pip install --no-deps /src \
 && ln -s "$(/opt/mirror/bin/python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/mirror/spark

FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
 && useradd --uid 10001 --create-home mirror \
 && install --directory --owner mirror --group mirror /srv/mirror
COPY --from=java /opt/java /opt/java
COPY --from=python /opt/mirror /opt/mirror
COPY containers/entrypoint containers/healthy /usr/local/bin/
ENV PATH=/opt/mirror/bin:/opt/java/bin:$PATH \
    JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/mirror/spark \
    PYSPARK_PYTHON=/opt/mirror/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/tmp/cache
USER 10001
WORKDIR /tmp
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 CMD ["healthy"]
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/entrypoint"]
CMD ["mirror", "--help"]
