// The card of a pushed run: what its page on the Hub shows. It has facts that the run has left in
// its files, and nothing that they don't tell; no rows of the data, and no paths.

import { win32 } from 'node:path';
import { stringify } from 'yaml';
import { dataNames, withEntries } from '../data/data-parts.js';
import { RUN_FILES } from '../files/run-files.js';
import { isDataName, parseDataName } from '../hub/data-name.js';
import type { License } from '../hub/hub-push.js';
import type { StepLine } from '../output/run-records.js';
import { hubFields, usageLines } from './card-usage.js';
import { baseNameOf } from './public-text.js';
import type { PushedRun } from './pushed-run.js';

export interface CardOptions {
  /** The name of the repository. */
  readonly repo: string;
  /** Hashes of the files that --data and --valid named, where they are known. */
  readonly hashes: ReadonlyMap<string, string>;
  /** The license of the base; undefined where it is not known. */
  readonly license: License | undefined;
  /** The names of the GGUF files that are pushed, too. */
  readonly ggufs: readonly string[];
  /** The version of this program. */
  readonly version: string;
}

/** The rows of the table of losses, at most. */
const LOSS_ROWS = 12;
/** The data without --data. */
const NOVEL = 'Moby Dick';

/** The text of README.md. */
export function modelCard(run: PushedRun, options: CardOptions): string {
  const parts = [
    `---\n${stringify(frontMatter(run, options))}---`,
    `# ${options.repo.split('/')[1]}`,
    introduction(run),
    ...usage(run, options),
    '## Training',
    table(['', ''], trainingRows(run, options)),
    '## Losses',
    ...losses(run),
    ...figures(run),
    '## The same run again',
    again(run),
    `Pushed by shardweave ${options.version} under Node ${process.versions.node}.`,
  ];
  return `${parts.join('\n\n')}\n`;
}

/** The fields that the Hub reads; each is left out where it is not known. */
function frontMatter(run: PushedRun, { license, ggufs }: CardOptions): object {
  const isAdapter = run.kind === 'adapter';
  const base = run.base && {
    base_model: run.base.repo,
    base_model_relation: isAdapter ? 'adapter' : 'finetune',
  };
  const datasets = dataOf(run)
    .filter(isDataName)
    .map((name) => parseDataName(name, '--data').repo);
  return {
    ...license,
    ...base,
    ...(datasets.length > 0 && { datasets: [...new Set(datasets)] }),
    ...hubFields(run),
    tags: ['shardweave', ...(isAdapter ? ['lora'] : []), ...(ggufs.length > 0 ? ['gguf'] : [])],
  };
}

function introduction(run: PushedRun): string {
  const { base, kind, baseName } = run;
  const model = base === undefined ? code(baseName) : `[${base.repo}](/${base.repo})`;
  const what =
    kind === 'adapter'
      ? `Adapters (LoRA) for ${model}`
      : isFromNothing(run)
        ? `A model of the shape ${model}, trained from random weights`
        : `${model}, fine-tuned`;
  const part =
    run.summary === undefined
      ? ' The run did not come to its end: these are the weights of one of its saves.'
      : '';
  return `${what} with shardweave.${part}`;
}

/** Whether a run began with random weights, as a preset does. */
function isFromNothing({ base, header, config }: PushedRun): boolean {
  const isPreset = base === undefined && !win32.isAbsolute(String(config.model ?? ''));
  return isPreset || header.has('weights');
}

/** How what is there is used, as far as that can be said by names that anybody can load. */
function usage(run: PushedRun, { repo, ggufs }: CardOptions): string[] {
  const lines = usageLines(run, repo);
  const files = ggufs.map(code).join(', ');
  const ofBase = run.kind === 'adapter' ? ', beside a GGUF of the base' : '';
  return [
    ...(lines.length === 0 ? [] : [lines.join('\n')]),
    ...(ggufs.length === 0 ? [] : [`${files}: for llama.cpp and ollama${ofBase}.`]),
  ];
}

type Row = readonly [string, string];

function trainingRows(run: PushedRun, { hashes }: CardOptions): Row[] {
  const { base, config, header, summary, baseName } = run;
  const { data = undefined, valid = undefined } = config;
  const rows: (readonly [string, string | undefined])[] = [
    [isFromNothing(run) ? 'shape' : 'base', code(baseName)],
    ['commit of the base', base?.revision && code(base.revision)],
    ['task', header.get('task')],
    ['adapters', run.kind === 'adapter' ? loraText(run) : undefined],
    ['data', dataText(data ?? NOVEL, header.get('data'), hashes.get('data'))],
    ['evaluated on', validText(config, header.get('valid'), valid && hashes.get('valid'))],
    ['steps', header.get('step')],
    ['AdamW', header.get('adamw')],
    ['precision', textOf(config.precision)],
    [
      'ranks',
      config.strategy === undefined
        ? undefined
        : `${textOf(config.ranks)}, ${textOf(config.strategy)}`,
    ],
    ['device', summary?.device],
    ['numeric class', summary?.numericClass],
    ['weights', summary?.final && `those of step ${summary.final.step}`],
  ] as const;
  return rows.filter((row): row is Row => row[1] !== undefined);
}

function loraText({ config }: PushedRun): string {
  if (config.adapter !== undefined) {
    return 'went on from other adapters, which are not here';
  }
  const { 'lora-rank': rank, 'lora-alpha': alpha, 'lora-dropout': dropout } = config;
  const targets = config['lora-targets'];
  const where = Array.isArray(targets) ? targets.join(', ') : 'all linear layers';
  const drop = dropout ? `, dropout ${textOf(dropout)}` : '';
  return `rank ${textOf(rank)}, alpha ${textOf(alpha)}${drop} on ${where}`;
}

/** The name of a file of data, its size as the run's header has it, and its hash. */
function dataText(data: unknown, row: string | undefined, hash: string | undefined): string {
  const given = String(data);
  const size = row?.startsWith(`${given}: `) ? `: ${row.slice(given.length + 2)}` : '';
  const sum = hash === undefined ? '' : `, sha256 ${code(hash)}`;
  return `${code(withEntries(given, baseNameOf))}${size}${sum}`;
}

function validText(
  config: PushedRun['config'],
  row: string | undefined,
  hash: unknown,
): string | undefined {
  const { valid } = config;
  if (valid !== undefined) {
    return dataText(valid, row, hash as string | undefined);
  }
  return config['valid-fraction'] === undefined ? undefined : row;
}

function losses({ steps, summary }: PushedRun): string[] {
  const learnt = steps.filter(({ loss }) => loss !== null);
  const [first, last] = [learnt.at(0), learnt.at(-1)];
  if (first === undefined || last === undefined) {
    return ['The run had no step with targets.'];
  }
  const evaluated = steps.filter(({ validLoss }) => validLoss !== undefined);
  const [begin, end] = [evaluated.at(0), evaluated.at(-1)];
  const best = summary?.final?.best;
  const evaluations = new Map(
    [begin, end].flatMap((line) => (line === undefined ? [] : [[line.step, line.validLoss]])),
  );
  if (best !== undefined && !evaluations.has(best.step)) {
    evaluations.set(best.step, best.validLoss);
  }
  const valid = [...evaluations].map(
    ([step, loss]) =>
      `${formatLoss(loss)} after step ${step}${step === best?.step && evaluations.size > 1 ? ', the best' : ''}`,
  );
  const trained = [...new Set([first, last])].map(
    ({ loss, step }) => `${formatLoss(loss)} in step ${step}`,
  );
  const shown = thinned(begin === undefined ? steps : [first, ...evaluated, last]);
  return [
    `Trained: ${trained.join(', ')}.${valid.length === 0 ? '' : ` Evaluated: ${valid.join(', ')}.`}`,
    `![loss over steps](${RUN_FILES.chart})`,
    table(
      ['step', 'loss', 'evaluated'],
      shown.map(({ step, loss, validLoss }) => [
        ...[String(step), formatLoss(loss), validLoss === undefined ? '' : formatLoss(validLoss)],
      ]),
    ),
  ];
}

/** What a task is judged by beside its loss: at first, at best and in the end. */
function figures({ steps, summary }: PushedRun): string[] {
  const evaluated = steps.filter((line) => line.figures !== undefined);
  const best = evaluated.find(({ step }) => step === summary?.final?.best?.step);
  const shown = new Set([evaluated.at(0), best, evaluated.at(-1)]);
  const rows = [...shown].filter((line) => line !== undefined).sort((a, b) => a.step - b.step);
  if (rows.length === 0) {
    return [];
  }
  const names = Object.keys(rows[0]!.figures!);
  const cells = rows.map(({ step, figures: own }) => [
    ...[String(step), ...names.map((name) => formatLoss(own![name]))],
  ]);
  return ['## Figures', table(['step', ...names], cells)];
}

/** Some of the steps at equal distances, the first and the last among them, each once. */
function thinned(steps: readonly StepLine[]): StepLine[] {
  const all = [...new Set(steps)].sort((a, b) => a.step - b.step);
  const count = Math.min(LOSS_ROWS, all.length);
  const at = Array.from({ length: count }, (_, i) =>
    count === 1 ? 0 : Math.round((i * (all.length - 1)) / (count - 1)),
  );
  return at.map((index) => all[index]!);
}

function again(run: PushedRun): string {
  const { config, base, baseName } = run;
  const files = dataOf(run).filter((path) => !isDataName(path));
  const names = files.map((path) => code(baseNameOf(path)));
  const isLocal = base === undefined && win32.isAbsolute(String(config.model ?? ''));
  const own = [...names, ...(isLocal ? [code(baseName)] : [])];
  const needs =
    own.length === 0 ? '' : `\n\nIt wants ${own.join(' and ')} there, which ${are(own)} not here.`;
  const command = 'npx shardweave train --config config.yaml --out run';
  return `In a directory with ${code(RUN_FILES.config)} of this repository:\n\n\`\`\`sh\n${command}\n\`\`\`${needs}`;
}

/** What the run was trained and evaluated on: paths and names. */
function dataOf({ config }: PushedRun): string[] {
  return [config.data, config.valid].flatMap((given) =>
    given === undefined ? [] : dataNames(String(given)),
  );
}

const are = (names: readonly string[]) => (names.length === 1 ? 'is' : 'are');

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}

/** A name as code, whatever characters it has. */
function code(name: string): string {
  return `\`${name.replaceAll(/[`\p{Cc}]/gu, '')}\``;
}

function textOf(value: unknown): string {
  return String(value);
}

function formatLoss(loss: number | null | undefined): string {
  return loss?.toFixed(4) ?? '-';
}
