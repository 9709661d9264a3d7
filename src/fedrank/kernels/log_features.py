"""Features of queries and documents, from the counts of terms in three streams: title, body, url.

Terms of stream s of document d are rows `offsets[3 d + s] .. offsets[3 d + s + 1] - 1` of `terms` (ascending) and
`counts`. Feature f of stream s goes to column 3 f + s; the number of slashes to the last one.
"""

import math

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import log

STREAMS = 3
BM25, TF, IDF, TF_IDF, WORDS, SHARE, COSINE, COVERED, COVERED_RATIO = 0, 1, 6, 11, 16, 21, 26, 27, 28
CHARACTERS, TERMS, QUERY_TERMS, EXACT, MATCH, SLASHES = 29, 30, 31, 32, 33, 34 * STREAMS


@compiled()
def count_terms(tokens, token_offsets, terms, counts, sizes):
    """Sort every row of tokens in place and write its distinct terms, their counts and their number.

    Returns the total number of distinct terms of all rows.
    """
    end = 0
    for row in range(len(token_offsets) - 1):
        some = tokens[token_offsets[row] : token_offsets[row + 1]]
        some.sort()
        begin = end
        for i in range(len(some)):
            if i > 0 and some[i] == some[i - 1]:
                counts[end - 1] += 1
            else:
                terms[end] = some[i]
                counts[end] = 1
                end += 1
        sizes[row] = end - begin
    return end


@compiled()
def describe_streams(offsets, terms, counts, word_lengths, frequencies, lengths, words):
    """Count documents with each term [terms, 3] and words [documents, 3]; summarise word lengths [documents, 3, 5]."""
    for document in range(len(lengths)):
        for stream in range(STREAMS):
            row = STREAMS * document + stream
            first, last = offsets[row], offsets[row + 1]
            for i in range(first, last):
                frequencies[terms[i], stream] += 1
                lengths[document, stream] += counts[i]
            if first < last:
                of_stream = word_lengths[terms[first:last]]
                summarise(of_stream, counts[first:last], words[document, stream], 0, 1)


@compiled()
def document_norms(offsets, terms, counts, idf, norms):
    """Length of the vector of tf-idf of each stream, [documents, 3]; idf is [terms, 3]."""
    for document in range(len(norms)):
        for stream in range(STREAMS):
            row = STREAMS * document + stream
            total = 0.0
            for i in range(offsets[row], offsets[row + 1]):
                weight = counts[i] * idf[terms[i], stream]
                total += weight * weight
            norms[document, stream] = math.sqrt(total)


@compiled()
def occurrences(wanted, terms, counts, first, last, found):
    """Frequencies of the wanted terms in the stream of rows first .. last - 1; -1 is an unknown term."""
    for j in range(len(wanted)):
        low, high = first, last
        while low < high:
            middle = (low + high) // 2
            if terms[middle] < wanted[j]:
                low = middle + 1
            else:
                high = middle
        found[j] = counts[low] if low < last and terms[low] == wanted[j] else 0


@compiled()
def summarise(values, repeats, out, column, step):
    """Min, max, sum, mean and variance (divided by n) of values that occur `repeats` times; all 0 without values."""
    if len(values) == 0:
        for i in range(5):
            out[column + i * step] = 0
        return
    smallest = largest = np.float64(values[0])
    total = 0.0
    n = 0
    for j in range(len(values)):
        smallest = min(smallest, values[j])
        largest = max(largest, values[j])
        total += repeats[j] * values[j]
        n += repeats[j]
    mean = total / n
    spread = 0.0
    for j in range(len(values)):
        spread += repeats[j] * (values[j] - mean) ** 2
    out[column] = smallest
    out[column + step] = largest
    out[column + 2 * step] = total
    out[column + 3 * step] = mean
    out[column + 4 * step] = spread / n


@compiled()
def saturated(tf, length, mean_length, k1, b):
    """The saturation of term frequency in BM25, without the factor k1 + 1."""
    return tf / (tf + k1 * (1 - b + b * length / mean_length))


@compiled()
def most_terms(query_offsets):
    """Number of terms of the longest query."""
    most = 0
    for q in range(len(query_offsets) - 1):
        most = max(most, query_offsets[q + 1] - query_offsets[q])
    return most


@compiled()
def describe_stream(row, stream, words, characters, length):
    """Write the features that do not depend on the query."""
    for i in range(5):
        row[STREAMS * (WORDS + i) + stream] = words[i]
    row[STREAMS * CHARACTERS + stream] = characters
    row[STREAMS * TERMS + stream] = length


@compiled()
def collection_features(out, first, last, query_of_pair, row_of_pair, asked, collection, k1, b):
    """Write the features of pairs first .. last - 1; statistics are those of the whole collection.

    Distinct terms of query q are rows `query_offsets[q] ..` of `wanted` and `idf` [wanted, 3].
    """
    query_offsets, wanted, _, idf = asked
    offsets, terms, counts, lengths, mean_lengths, characters, words, norms, slashes = collection
    most = most_terms(query_offsets)
    all_tf, all_values, all_ones = np.empty(most), np.empty(most), np.ones(most, np.int64)
    for pair in range(first, last):
        row = out[pair]
        document = row_of_pair[pair]
        begin, end = query_offsets[query_of_pair[pair]], query_offsets[query_of_pair[pair] + 1]
        n = end - begin
        tf, values, ones = all_tf[:n], all_values[:n], all_ones[:n]
        for stream in range(STREAMS):
            a, z = offsets[STREAMS * document + stream], offsets[STREAMS * document + stream + 1]
            length = lengths[document, stream]
            rarity = idf[begin:end, stream]
            occurrences(wanted[begin:end], terms, counts, a, z, tf)
            bm25 = dot = weight = 0.0
            covered = 0
            for j in range(n):
                weight += rarity[j] * rarity[j]
                if tf[j] > 0:
                    covered += 1
                    bm25 += rarity[j] * saturated(tf[j], length, mean_lengths[stream], k1, b)
                    dot += rarity[j] * rarity[j] * tf[j]
            describe_stream(row, stream, words[document, stream], characters[document, stream], length)
            row[STREAMS * BM25 + stream] = bm25
            summarise(tf, ones, row, STREAMS * TF + stream, STREAMS)
            summarise(rarity, ones, row, STREAMS * IDF + stream, STREAMS)
            for j in range(n):
                values[j] = tf[j] * rarity[j]
            summarise(values, ones, row, STREAMS * TF_IDF + stream, STREAMS)
            for j in range(n):
                values[j] = tf[j] / length if length > 0 else 0.0
            summarise(values, ones, row, STREAMS * SHARE + stream, STREAMS)
            row[STREAMS * COSINE + stream] = dot / (math.sqrt(weight) * norms[document, stream]) if dot > 0 else 0.0
            row[STREAMS * COVERED + stream] = covered
            row[STREAMS * COVERED_RATIO + stream] = covered / n if n > 0 else 0.0
            row[STREAMS * QUERY_TERMS + stream] = n
            row[STREAMS * EXACT + stream] = 1 if covered == n and n > 0 else 0
            row[STREAMS * MATCH + stream] = covered / (z - a) if z > a else 0.0
        row[SLASHES] = slashes[document]


@compiled()
def okapi_idf(documents, having):
    """idf of a term that `having` of the documents have, as in rank_bm25; negative beyond one half."""
    return log(documents - having + 0.5) - log(having + 0.5)


@compiled()
def smooth_idf(documents, having):
    """idf of a term that `having` of the documents have, as in scikit-learn; 0 if none has it."""
    return log((1 + documents) / (1 + having)) + 1 if having > 0 else 0.0


@compiled()
def count_list(documents, stream, offsets, terms, having):
    """Count how many documents of a list have each term; returns the number of distinct terms."""
    distinct = 0
    for document in documents:
        for i in range(offsets[STREAMS * document + stream], offsets[STREAMS * document + stream + 1]):
            if having[terms[i]] == 0:
                distinct += 1
            having[terms[i]] += 1
    return distinct


@compiled()
def total_okapi_idf(documents, stream, offsets, terms, having, not_empty):
    """Sum of Okapi's idf over the distinct terms of a list."""
    total = 0.0
    for document in documents:
        for i in range(offsets[STREAMS * document + stream], offsets[STREAMS * document + stream + 1]):
            # A term occurs once per document that has it.
            total += okapi_idf(not_empty, having[terms[i]]) / having[terms[i]]
    return total


@compiled()
def forget_list(documents, stream, offsets, terms, having):
    """Reset the counts of `count_list`, and only these."""
    for document in documents:
        for i in range(offsets[STREAMS * document + stream], offsets[STREAMS * document + stream + 1]):
            having[terms[i]] = 0


@compiled()
def published_features(out, first, last, list_offsets, order, row_of_pair, vocabulary, asked, collection, k1, b, floor):
    """Write the features of lists first .. last - 1 as AOL4FOLTR published them: each list is a separate collection.

    Pairs of list i, whose query is number i, are `order[list_offsets[i] .. list_offsets[i + 1] - 1]`, by document.
    """
    query_offsets, wanted, all_repeats, _ = asked
    offsets, terms, counts, lengths, _, characters, words, _, slashes = collection
    most = most_terms(query_offsets)
    all_tf, all_idf, all_values = np.empty(most), np.empty(most), np.empty(most)
    having = np.zeros(vocabulary, np.int32)
    for number in range(first, last):
        pairs = order[list_offsets[number] : list_offsets[number + 1]]
        documents = np.unique(row_of_pair[pairs])
        begin, end = query_offsets[number], query_offsets[number + 1]
        n = end - begin
        repeats = all_repeats[begin:end]
        query_terms = repeats.sum()
        tf, idf, values = all_tf[:n], all_idf[:n], all_values[:n]
        for stream in range(STREAMS):
            not_empty = total_length = 0
            for document in documents:
                not_empty += 1 if lengths[document, stream] > 0 else 0
                total_length += lengths[document, stream]
            if not_empty == 0:
                for pair in pairs:
                    for feature in range(MATCH + 1):
                        out[pair, STREAMS * feature + stream] = 0
                continue
            distinct = count_list(documents, stream, offsets, terms, having)
            mean_rarity = total_okapi_idf(documents, stream, offsets, terms, having, not_empty) / distinct
            weight = 0.0
            for j in range(n):
                term = wanted[begin + j]
                idf[j] = smooth_idf(len(documents), having[term]) if term >= 0 else 0.0
                weight += (repeats[j] * idf[j]) ** 2
            for pair in pairs:
                row = out[pair]
                document = row_of_pair[pair]
                a, z = offsets[STREAMS * document + stream], offsets[STREAMS * document + stream + 1]
                length = lengths[document, stream]
                occurrences(wanted[begin:end], terms, counts, a, z, tf)
                bm25 = dot = norm = total_tf = 0.0
                covered = matched = 0
                for j in range(n):
                    if tf[j] > 0:
                        rarity = okapi_idf(not_empty, having[wanted[begin + j]])
                        if rarity < 0:
                            rarity = floor * mean_rarity
                        worth = (k1 + 1) * saturated(tf[j], length, total_length / not_empty, k1, b)
                        bm25 += repeats[j] * rarity * worth
                        dot += repeats[j] * idf[j] * tf[j] * idf[j]
                        total_tf += repeats[j] * tf[j]
                        covered += repeats[j]
                        matched += 1
                for i in range(a, z):
                    norm += (counts[i] * smooth_idf(len(documents), having[terms[i]])) ** 2
                describe_stream(row, stream, words[document, stream], characters[document, stream], length)
                row[STREAMS * BM25 + stream] = bm25
                summarise(tf, repeats, row, STREAMS * TF + stream, STREAMS)
                summarise(idf, repeats, row, STREAMS * IDF + stream, STREAMS)
                for j in range(n):
                    values[j] = tf[j] * idf[j]
                summarise(values, repeats, row, STREAMS * TF_IDF + stream, STREAMS)
                for i in range(4):
                    row[STREAMS * (SHARE + i) + stream] = total_tf / length if length > 0 else 0.0
                row[STREAMS * (SHARE + 4) + stream] = 0
                row[STREAMS * COSINE + stream] = dot / math.sqrt(weight * norm) if dot > 0 else 0.0
                row[STREAMS * COVERED + stream] = covered
                row[STREAMS * COVERED_RATIO + stream] = covered / query_terms if n > 0 else 0.0
                row[STREAMS * QUERY_TERMS + stream] = query_terms
                row[STREAMS * EXACT + stream] = 1 if matched == query_terms and n > 0 else 0
                row[STREAMS * MATCH + stream] = matched / query_terms if n > 0 else 0.0
            forget_list(documents, stream, offsets, terms, having)
        for pair in pairs:
            out[pair, SLASHES] = slashes[row_of_pair[pair]]
