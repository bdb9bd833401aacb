// What an embedder of MiniLM's shape learns on a laptop: from random weights, of 5,000 pairs of a
// sentence of Moby Dick and the next one of its paragraph, judged on 1,000 pairs of paragraphs that
// are held out. The command trains the whole model on one rank, and adapters on two; figures are
// recall@10 (chance is 0.01) and processor time. Then a step is timed in turns with PyTorch's,
// of the same shape and texts. It needs the built packages and Debian's python3-torch.
// Usage: node bench/search.mjs [--steps 156] [--batch 64] [--lora-steps 117] [--rounds 5]
//   [--report FILE]

import { spawn, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from '../packages/nn/dist/index.js';
import { readNovel } from '../tooling/tsup/novel.mjs';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'];
const LAYERS = 6;
const WIDTH = 384;
const INNER = 1536;
const POSITIONS = 512;
const SEQ = 48;
/**
 * The spread of weights, and of the tables, whose rows are brought to one length at once: smaller
 * ones turn faster at the same rate, and positions hide the words less.
 */
const STD = { weights: 0.02, words: 0.004, others: 0.0005 };
/** The steps of a round of timing, of which the first is left out. */
const TIMED_STEPS = 5;

const flags = flagsOf({
  steps: '156',
  batch: '64',
  'lora-steps': '117',
  rounds: '5',
  report: undefined,
});

const folder = mkdtempSync(join(tmpdir(), 'search-'));
const random = generator(7);
const { learned, held, words } = readPairs();
const file = (name, pairs) => {
  const path = join(folder, name);
  writeFileSync(path, pairs.map((pair) => `${JSON.stringify(pair)}\n`).join(''));
  return path;
};
const [data, valid] = [file('learned.jsonl', learned), file('held.jsonl', held)];
const vocab = vocabularyOf(words);
const model = writeModel(vocab);

const record = await startRecord('bench/search.mjs');
const shared = ['--task', 'embed', '--model', model, '--data', data, '--symmetric'];
const sizes = [
  '--batch',
  flags.batch,
  '--chunk-size',
  String(2 * flags.batch),
  '--seq',
  String(SEQ),
];
const how = ['--device', 'cpu', '--threads', '1', '--weight-decay', '0', '--warmup', '10'];
const every = Math.ceil(flags.steps / 2);
const judged = ['--valid', valid, '--eval-every', String(every)];
const alone = await train('whole', [
  '--ranks',
  '1',
  '--lr',
  '1e-4',
  '--steps',
  flags.steps,
  ...judged,
]);
const adapters = await train('adapters', [
  ...[
    '--ranks',
    '2',
    '--lora-rank',
    '16',
    '--lr',
    '1e-3',
    '--steps',
    flags['lora-steps'],
    ...judged,
  ],
]);
const turns = { ours: [], torch: [] };
for (let round = 0; round < flags.rounds; round++) {
  turns.ours.push(await ourStep(round));
  turns.torch.push(torchStep());
}
await endRecord(record);
rmSync(folder, { recursive: true });
const runs = [alone, adapters];
const steps = Object.entries(turns).map(([engine, ms]) => ({ engine, ...timesOf(ms) }));
Object.assign(record, {
  pairs: learned.length,
  held: held.length,
  vocab: vocab.length,
  runs,
  steps,
});
publish(flags.report, report(), record);

/** Pairs of neighbours, whole paragraphs of them held out, and how often each word stands there. */
function readPairs() {
  const text = readNovel().replace(/^CHAPTER.*$/gm, '');
  const found = { learned: [], held: [], words: new Map() };
  for (const word of plain(text).match(/[a-z0-9]+|[^\sa-z0-9]/g)) {
    found.words.set(word, (found.words.get(word) ?? 0) + 1);
  }
  for (const paragraph of text.split(/\n\s*\n/)) {
    const line = paragraph.replace(/\s+/g, ' ');
    const sentences = (line.match(/[^.!?]+[.!?]+["”')]*\s*/g) ?? []).map((each) => each.trim());
    const to = random() < 1 / 6 ? found.held : found.learned;
    for (let i = 0; i + 1 < sentences.length; i++) {
      to.push({ query: sentences[i], positive: sentences[i + 1] });
    }
  }
  return { ...found, learned: found.learned.slice(0, 5000), held: found.held.slice(0, 1000) };
}

/** A text as BERT's tokenizer for text without case takes it. */
function plain(text) {
  return text
    .toLowerCase()
    .normalize('NFD')
    .replace(/\p{Mn}/gu, '');
}

function vocabularyOf(counts) {
  const letters = [...'abcdefghijklmnopqrstuvwxyz0123456789'];
  const byCount = [...counts].sort(([, a], [, b]) => b - a).map(([word]) => word);
  return [...new Set([...SPECIAL, ...letters, ...letters.map((one) => `##${one}`), ...byCount])];
}

/** A directory as of a Hub's MiniLM, with a WordPiece of the novel's words and random weights. */
function writeModel(tokens) {
  const directory = join(folder, 'minilm');
  mkdirSync(directory);
  const write = (name, content) =>
    writeFileSync(
      join(directory, name),
      content instanceof Uint8Array ? content : JSON.stringify(content),
    );
  write('config.json', {
    ...{ architectures: ['BertModel'], model_type: 'bert', vocab_size: tokens.length },
    ...{ hidden_size: WIDTH, num_hidden_layers: LAYERS, num_attention_heads: 12 },
    ...{ intermediate_size: INNER, hidden_act: 'gelu', max_position_embeddings: POSITIONS },
    ...{ type_vocab_size: 2, layer_norm_eps: 1e-12, pad_token_id: 0 },
    ...{ hidden_dropout_prob: 0, attention_probs_dropout_prob: 0 },
  });
  const special = (id, type_id = 0) => ({ SpecialToken: { id, type_id } });
  const text = (id, type_id = 0) => ({ Sequence: { id, type_id } });
  const ids = (id) => ({ id, ids: [tokens.indexOf(id)], tokens: [id] });
  write('tokenizer.json', {
    ...{ version: '1.0', truncation: null, padding: null },
    added_tokens: SPECIAL.map((content, id) => ({
      ...{ id, content, special: true, single_word: false },
      ...{ lstrip: false, rstrip: false, normalized: false },
    })),
    normalizer: {
      ...{ type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true },
      ...{ strip_accents: null, lowercase: true },
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing',
      single: [special('[CLS]'), text('A'), special('[SEP]')],
      pair: [special('[CLS]'), text('A'), special('[SEP]'), text('B', 1), special('[SEP]', 1)],
      special_tokens: { '[CLS]': ids('[CLS]'), '[SEP]': ids('[SEP]') },
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      ...{ type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##' },
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    },
  });
  write('tokenizer_config.json', {
    ...{ tokenizer_class: 'BertTokenizer', do_lower_case: true, model_max_length: POSITIONS },
    ...{ unk_token: '[UNK]', cls_token: '[CLS]', sep_token: '[SEP]', pad_token: '[PAD]' },
    mask_token: '[MASK]',
  });
  write('model.safetensors', writeSafetensors(randomState(tokens.length)));
  return directory;
}

function randomState(vocabulary) {
  const state = new Map();
  const add = (name, shape, next) => {
    const size = shape.reduce((product, extent) => product * extent, 1);
    const values = Float32Array.from({ length: size }, next);
    state.set(name, { dtype: 'f32', shape, data: new Uint8Array(values.buffer) });
  };
  const normal = (std) => () =>
    std * Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const linear = (name, rows, columns) => {
    add(`${name}.weight`, [rows, columns], normal(STD.weights));
    add(`${name}.bias`, [rows], () => 0);
  };
  const norm = (name) => {
    add(`${name}.LayerNorm.weight`, [WIDTH], () => 1);
    add(`${name}.LayerNorm.bias`, [WIDTH], () => 0);
  };
  add('embeddings.word_embeddings.weight', [vocabulary, WIDTH], normal(STD.words));
  add('embeddings.position_embeddings.weight', [POSITIONS, WIDTH], normal(STD.others));
  add('embeddings.token_type_embeddings.weight', [2, WIDTH], normal(STD.others));
  norm('embeddings');
  for (let layer = 0; layer < LAYERS; layer++) {
    const at = `encoder.layer.${layer}`;
    for (const part of ['query', 'key', 'value']) {
      linear(`${at}.attention.self.${part}`, WIDTH, WIDTH);
    }
    linear(`${at}.attention.output.dense`, WIDTH, WIDTH);
    norm(`${at}.attention.output`);
    linear(`${at}.intermediate.dense`, INNER, WIDTH);
    linear(`${at}.output.dense`, WIDTH, INNER);
    norm(`${at}.output`);
  }
  return state;
}

/** Trains; resolves with what the evaluations told and the processor time of all of it. */
async function train(name, more) {
  const out = join(folder, name);
  const args = [...shared, ...sizes, ...how, ...more, '--out', out];
  const seconds = await command(args);
  const lines = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trim().split('\n');
  const evaluations = lines
    .map((line) => JSON.parse(line))
    .filter(({ figures }) => figures !== undefined)
    .map(({ step, figures }) => ({ step, recall: figures['recall@10'], ndcg: figures['ndcg@10'] }));
  return { name, processorSeconds: seconds, evaluations };
}

/** The median time of a step in ms; on one thread that is processor time. */
async function ourStep(round) {
  const out = join(folder, `timed-${round}`);
  await command([
    ...shared,
    ...sizes,
    ...how,
    '--ranks',
    '1',
    '--steps',
    String(TIMED_STEPS + 1),
    '--out',
    out,
  ]);
  const lines = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trim().split('\n').slice(1);
  return timesOf(lines.map((line) => JSON.parse(line).stepMs)).median;
}

function torchStep() {
  const task = JSON.stringify({
    ...{ texts: learned.slice(0, Number(flags.batch) * (TIMED_STEPS + 1)), vocab, seq: SEQ },
    ...{ batch: Number(flags.batch), layers: LAYERS, width: WIDTH, inner: INNER, heads: 12 },
  });
  const env = {
    ...process.env,
    OMP_NUM_THREADS: '1',
    OPENBLAS_NUM_THREADS: '1',
    OMP_WAIT_POLICY: 'PASSIVE',
  };
  const { stdout, status, stderr } = spawnSync(
    '/usr/bin/python3',
    [join(ROOT, 'bench/engines/pytorch_search.py')],
    { input: task, env, encoding: 'utf8', maxBuffer: 2 ** 26 },
  );
  if (status !== 0) {
    throw new Error(`PyTorch ended with ${status}: ${stderr}`);
  }
  return timesOf(JSON.parse(stdout).slice(1)).median;
}

/** Runs the command `train`; resolves with the processor time of its process in seconds. */
async function command(args) {
  const path = join(folder, 'cpu.json');
  // The processes that look for devices inherit the import, but not the arguments.
  const tell = `import { writeFileSync } from 'node:fs';
    if (process.argv[2] === 'train') {
      process.on('exit', () => writeFileSync('${path}', JSON.stringify(process.cpuUsage())));
    }`;
  const node = ['--import', `data:text/javascript,${encodeURIComponent(tell)}`];
  const child = spawn(process.execPath, [...node, 'apps/trainer/dist/main.js', 'train', ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  const code = await new Promise((resolve) => child.on('close', resolve));
  if (code !== 0) {
    throw new Error(`The command ended with code ${code}.`);
  }
  const { user, system } = JSON.parse(readFileSync(path, 'utf8'));
  return (user + system) / 1e6;
}

/** Numbers from 0 to 1 that follow from a seed (Lehmer, 1951). */
function generator(seed) {
  let state = seed;
  return () => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
}

function report() {
  const body = runs.flatMap(({ name, processorSeconds, evaluations }) =>
    evaluations.map(({ step, recall, ndcg }, i) => [
      name,
      step,
      recall.toFixed(3),
      ndcg.toFixed(3),
      i === evaluations.length - 1 ? processorSeconds.toFixed(0) : '',
    ]),
  );
  const times = steps.map(({ engine, best, median }) => [
    engine,
    best.toFixed(0),
    median.toFixed(0),
  ]);
  return [
    headOf('An embedder of Moby Dick', record),
    `${learned.length} pairs are learned, ${held.length} judged, each query among all of these documents: chance is ${(10 / held.length).toFixed(3)}. A vocabulary of ${vocab.length} words; ${flags.batch} pairs a step of up to ${SEQ} tokens a text. \`adapters\`: LoRA of rank 16 beside the random weights, over two ranks of one thread. Processor time has the evaluations in it.`,
    table(['trained', 'after step', 'recall@10', 'nDCG@10', 'processor time, s'], body),
    `A step of ${flags.batch} pairs, one thread, ${flags.rounds} rounds in turns, each the median of ${TIMED_STEPS} steps; PyTorch pads a step's texts to its longest.`,
    table(['engine', 'best, ms', 'median, ms'], times),
  ].join('\n\n');
}
