import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.LowerCaseFilter;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.standard.StandardTokenizer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.ConstantScoreQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.similarities.BM25Similarity;
import org.apache.lucene.store.ByteBuffersDirectory;
import org.apache.lucene.util.QueryBuilder;

/** The text features of engine-1, by Lucene: for every query and document, one line with nine values. */
public class LuceneFeatures {
    public static void main(String[] args) throws Exception {
        Analyzer analyzer = new Analyzer() {
            @Override
            protected TokenStreamComponents createComponents(String field) {
                Tokenizer words = new StandardTokenizer();
                return new TokenStreamComponents(words, new LowerCaseFilter(words));
            }
        };
        ByteBuffersDirectory directory = new ByteBuffersDirectory();
        List<String> lines = Files.readAllLines(Path.of(args[0]));
        try (IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(analyzer))) {
            for (String line : lines) {
                String[] texts = line.split("\t", -1);
                Document document = new Document();
                document.add(new TextField("title", texts[0], Field.Store.NO));
                document.add(new TextField("body", texts[1], Field.Store.NO));
                document.add(new TextField("all", texts[0], Field.Store.NO));
                document.add(new TextField("all", texts[1], Field.Store.NO));
                writer.addDocument(document);
            }
            writer.forceMerge(1);
        }
        IndexSearcher searcher = new IndexSearcher(DirectoryReader.open(directory));
        searcher.setSimilarity(new BM25Similarity());
        QueryBuilder match = new QueryBuilder(analyzer);
        StringBuilder out = new StringBuilder();
        for (String asked : Files.readAllLines(Path.of(args[1]))) {
            List<float[]> columns = new ArrayList<>();
            for (String field : List.of("title", "body", "all")) {
                columns.add(scores(searcher, match.createBooleanQuery(field, asked), lines.size()));
            }
            for (String field : List.of("title", "body")) {
                columns.add(scores(searcher, match.createPhraseQuery(field, asked), lines.size()));
            }
            for (String field : List.of("title", "all")) {
                Query every = match.createBooleanQuery(field, asked, BooleanClause.Occur.MUST);
                columns.add(scores(searcher, new ConstantScoreQuery(every), lines.size()));
            }
            for (String field : List.of("title", "all")) {
                Query most = most(match.createBooleanQuery(field, asked), Integer.parseInt(args[2]));
                columns.add(scores(searcher, new ConstantScoreQuery(most), lines.size()));
            }
            for (int row = 0; row < lines.size(); row++) {
                for (float[] column : columns) {
                    out.append(column[row]).append(' ');
                }
                out.append('\n');
            }
        }
        System.out.print(out);
    }

    /** Requires a share of the words, rounded down, as minimum_should_match does. */
    static Query most(Query query, int share) {
        if (!(query instanceof BooleanQuery words)) {
            return query;
        }
        BooleanQuery.Builder builder = new BooleanQuery.Builder();
        words.clauses().forEach(builder::add);
        return builder.setMinimumNumberShouldMatch(words.clauses().size() * share / 100).build();
    }

    static float[] scores(IndexSearcher searcher, Query query, int documents) throws Exception {
        float[] found = new float[documents];
        for (ScoreDoc hit : searcher.search(query, documents).scoreDocs) {
            found[hit.doc] = hit.score;
        }
        return found;
    }
}
