// The command `embed`: makes vectors of texts, and finds hard negatives for pairs.

import { checkTogether, DEFAULT_NEGATIVES, EMBED, type EmbedFlags } from '../embed/embed-flags.js';
import { linesOf, vectorChunks, writeArray, writeLines } from '../embed/embed-texts.js';
import { minedLine, mineNegatives, type Pairs, readPairs } from '../embed/mine-negatives.js';
import { promptText } from '../embed/prompt-text.js';
import { type EmbedPlan, planEmbedding, TextEmbedder } from '../embed/text-embedder.js';
import { fileTexts, inputTexts, type TextLine } from '../embed/text-lines.js';
import { UsageError } from '../errors.js';
import { counted } from '../format.js';
import { Terminal } from '../output/terminal.js';
import type { CommandContext } from './cli-command.js';
import { defineCommand } from './define-command.js';
import { writeOut } from './new-directory.js';

/** The command `embed`. */
export const embed = defineCommand({
  name: 'embed',
  description:
    'Makes a vector of each text with an embedder: a line of JSON each, {"embedding"} behind the fields of its own line, or a NumPy array. With --mine-negatives it finds hard negatives for pairs, to train an embedder or a reranker with.',
  flags: EMBED,
  model: 'weights',
  examples: [
    {
      line: 'embed --model models/embedder',
      says: 'vectors of the lines of standard input, as lines of JSON',
    },
    {
      line: "embed --model models/embedder --data my.txt --prompt 'passage: ' --out vectors.npy",
      says: 'vectors of the lines of a file, which numpy.load reads',
    },
    {
      line: 'embed --model models/embedder --mine-negatives pairs.jsonl --out hard.jsonl',
      says: 'pairs with negatives beside them, to train with',
    },
  ],
  run: async (flags, context) => {
    checkTogether(flags);
    const { signal } = context.listen();
    const { out, err, env } = context;
    const terminal = new Terminal({ out, err, env, steps: 0, isQuiet: flags.quiet });
    try {
      const plan = await planEmbedding(flags);
      if (!plan.isKnown) {
        terminal.warn(
          `--model: ${flags.model} has no modules.json, which would say how tokens become a vector; here it is ${plan.head.pooling === 'mean' ? 'the mean of all' : 'the last one'}.`,
        );
      }
      const work = { flags, plan, context, terminal, signal };
      const lines = await (flags.mineNegatives === undefined ? embedTexts(work) : mine(work));
      terminal.close();
      if (!flags.quiet) {
        err.write(lines.map((line) => `${line}\n`).join(''));
      }
    } finally {
      terminal.close();
    }
    return 0;
  },
});

interface Work {
  readonly flags: EmbedFlags;
  readonly plan: EmbedPlan;
  readonly context: CommandContext;
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}

/** Resolves to lines about what was done. */
async function embedTexts(work: Work): Promise<string[]> {
  const { flags, plan, context, terminal, signal } = work;
  const { out, input, err, entry } = context;
  const { field, chunkSize, quiet: isQuiet, out: path } = flags;
  const prompt = promptText(flags.prompt, plan.head);
  if (prompt !== '' && !plan.includesPrompt) {
    throw new UsageError(
      `--prompt: the pooling of ${flags.model} leaves the tokens of a prompt out (include_prompt), which is not supported. Leave --prompt out, or give another model.`,
    );
  }
  const isFile = flags.data !== undefined;
  const source = isFile ? await fileTexts(flags) : inputTexts(input, { field, signal });
  await using embedder = await TextEmbedder.open(flags, plan, { entry });
  if (source.note !== undefined) {
    terminal.warn(source.note);
  }
  signal.throwIfAborted();
  if (!isFile && input.isTTY === true && !isQuiet) {
    err.write('Each line is a text; Ctrl-D ends them.\n');
  }
  const clock = new Clock();
  // A bar among the vectors that a terminal shows would be torn to pieces.
  const isShown = path !== undefined || out.isTTY !== true;
  const show = ({ endByte }: TextLine) =>
    source.total === undefined
      ? terminal.doing(`${embedder.numTexts} texts`)
      : terminal.embedding(source.name, endByte, source.total);
  const onChunk = isShown ? show : () => {};
  const chunks = vectorChunks(source, embedder, { prompt, chunkSize, signal, onChunk });
  await writeTo(path, (place) =>
    place?.endsWith('.npy') === true
      ? writeArray(place, chunks, { width: embedder.width, signal })
      : writeLines(linesOf(chunks), { path: place, out, signal }),
  );
  return summary(embedder, clock);
}

/** Resolves to lines about what was found. */
async function mine({ flags, plan, context, terminal, signal }: Work): Promise<string[]> {
  const pairs = await readPairs(flags.mineNegatives!);
  if (pairs.note !== undefined) {
    terminal.warn(pairs.note);
  }
  await using embedder = await TextEmbedder.open(flags, plan, context);
  const clock = new Clock();
  const onProgress = terminal.progress.bind(terminal);
  const found = await mineNegatives(embedder, pairs, { flags, signal, onProgress });
  const lines = summary(embedder, clock);
  const { out } = context;
  await writeTo(flags.out, (path) => writeLines(minedLines(pairs, found), { path, out, signal }));
  const { negatives: asked = DEFAULT_NEGATIVES } = flags;
  const numShort = found.filter(({ length }) => length < asked).length;
  if (numShort > 0) {
    const numNone = found.filter(({ length }) => length === 0).length;
    lines.push(
      `${numShort} of ${counted(found.length, 'line')} got fewer than ${counted(asked, 'negative')}, ${numNone} of them none: what else is similar answers the query, or may do so. A higher --margin leaves less out.`,
    );
  }
  return lines;
}

async function* minedLines(
  { lines, documents }: Pairs,
  found: readonly (readonly number[])[],
): AsyncGenerator<string> {
  for (const [i, line] of lines.entries()) {
    yield minedLine(
      line,
      found[i]!.map((document) => documents[document]!.text),
    );
  }
}

/** Writes --out, whose errors name it, or the output. */
function writeTo(
  path: string | undefined,
  write: (path: string | undefined) => Promise<void>,
): Promise<void> {
  return path === undefined ? write(path) : writeOut(path, write);
}

class Clock {
  readonly #startedMs = performance.now();

  get seconds(): number {
    return (performance.now() - this.#startedMs) / 1000;
  }
}

function summary(embedder: TextEmbedder, { seconds }: Clock): string[] {
  const { numTexts, numCut, seq } = embedder;
  const rate = `${counted(numTexts, 'text')}, ${(numTexts / seconds).toFixed(1)} texts/s`;
  const cut = `${counted(numCut, 'text')} had more than ${seq} tokens and ${numCut === 1 ? 'was' : 'were'} cut there.`;
  return numCut === 0 ? [rate] : [rate, cut];
}
