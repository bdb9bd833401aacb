// Describes what a directory holds, as a plain table.

import type { LoraConfig } from '@shardweave/nn';
import { formatBytes, formatCount } from '../format.js';
import { shapeText } from '../output/header.js';
import { isModelAlone } from '../saves/saved-run.js';
import type { TrainedConfig } from '../task/text-config.js';
import {
  type AdapterHolding,
  elementsOf,
  type Holding,
  type ModelHolding,
  type RunHolding,
  type SaveHolding,
  type TensorRow,
} from './holding.js';

/** Tensors of one kind and dtype. */
export interface TensorSum {
  readonly kind: TensorRow['kind'];
  readonly dtype: string;
  readonly tensors: number;
  readonly numbers: number;
  readonly bytes: number;
}

type Row = readonly [name: string, value: string];

/** Lines that each end with a line break. */
export function holdingText(holding: Holding, options: { readonly withTensors: boolean }): string {
  if (holding.kind === 'run') {
    return lines([`${holding.path}: a run`, ...table(runRows(holding))]);
  }
  const [title, rows] = describe(holding);
  const tensors = options.withTensors ? ['', ...table(holding.tensors.map(tensorRow))] : [];
  return lines([
    `${holding.path}: ${title}`,
    ...table([...rows, ...sumRows(holding.tensors)]),
    ...tensors,
  ]);
}

function describe(holding: SaveHolding | AdapterHolding | ModelHolding): [string, Row[]] {
  switch (holding.kind) {
    case 'save':
      return ['a save', saveRows(holding)];
    case 'adapter':
      return ['adapters', [loraRow({ ...holding.lora, layers: holding.lora.layers.length })]];
    case 'model':
      return ['a model', [modelRow(holding.model.config, holding.model.parameters)]];
  }
}

/** Sums of tensors by kind and dtype, in the order in which each first appears. */
export function sumsOf(tensors: readonly TensorRow[]): TensorSum[] {
  const sums = new Map<string, TensorSum>();
  for (const { kind, dtype, shape, bytes } of tensors) {
    const before = sums.get(`${kind} ${dtype}`);
    sums.set(`${kind} ${dtype}`, {
      ...{ kind, dtype },
      tensors: (before?.tensors ?? 0) + 1,
      numbers: (before?.numbers ?? 0) + elementsOf({ shape }),
      bytes: (before?.bytes ?? 0) + bytes,
    });
  }
  return [...sums.values()];
}

function saveRows({ model, run, writers, optimizer, files, bytes }: SaveHolding): Row[] {
  const rows: Row[] = [];
  if (model !== undefined) {
    rows.push(modelRow(model.config, model.parameters));
  }
  if (run !== undefined && isModelAlone(run)) {
    rows.push(['step', '0: weights of a model, for a run to begin with']);
  } else if (run !== undefined) {
    const { strategy, precision, lora } = run.config;
    const best = run.best && `; best ${run.best.validLoss.toFixed(4)} at step ${run.best.step}`;
    rows.push(
      ['step', `${run.step}, ${run.updates} of them updates`],
      ['loss', `validation ${lossText(run.validLoss)}${best ?? ''}`],
      ['world', `${ranksText(run.config.ranks)}, ${strategy}, ${precision}`],
      ['data', run.config.data ?? 'Moby Dick'],
      ['classes', run.numericClasses.join('; ')],
    );
    if (lora !== undefined) {
      rows.push(loraRow(lora));
    }
    if (run.base !== undefined) {
      rows.push(['base', `${run.base.path} (sha256 ${run.base.sha256.slice(0, 12)})`]);
    }
  }
  rows.push(
    [
      'state',
      optimizer === undefined
        ? 'no optimizer'
        : `${optimizer.kind} of ${optimizer.parameters} parameters`,
    ],
    [
      'files',
      `${formatBytes(bytes)} (${bytes.toLocaleString('en')} bytes) by ${ranksText(writers)}`,
    ],
    ...Object.entries(files).map(([name, size]): Row => ['', `${name}  ${formatBytes(size)}`]),
  );
  return rows;
}

function runRows({ saves }: RunHolding): Row[] {
  if (saves.length === 0) {
    return [['saves', 'none']];
  }
  // A save tells the best until itself, so that the newest one alone knows which it is.
  const last = saves.find((save) => 'run' in save);
  const best = last !== undefined && 'run' in last ? last.run?.best?.step : undefined;
  return saves.map((save) => {
    const name = save.path.split(/[/\\]/).at(-1)!;
    if ('problem' in save) {
      return [name, `can't be read: ${save.problem}`];
    }
    const { run, writers, bytes } = save;
    const isBest = best !== undefined && best === run?.step ? ' (best)' : '';
    const loss = `validation ${lossText(run?.validLoss)}${isBest}`;
    return [name, `${loss}, ${formatBytes(bytes)} by ${ranksText(writers)}`];
  });
}

function ranksText(ranks = 1): string {
  return `${ranks} rank${ranks === 1 ? '' : 's'}`;
}

function lossText(loss: number | undefined): string {
  return loss === undefined ? 'not measured' : loss.toFixed(4);
}

function modelRow(config: TrainedConfig, parameters: number): Row {
  const family = config.model_type === 'gpt2' ? 'gpt2, ' : '';
  const count = `${formatCount(parameters)} parameters (${parameters.toLocaleString('en')})`;
  return ['model', `${family}${shapeText(config)}; ${count}`];
}

function loraRow(lora: Pick<LoraConfig, 'rank' | 'alpha'> & { readonly layers?: number }): Row {
  const layers = lora.layers === undefined ? '' : `, beside ${lora.layers} layers`;
  return ['lora', `rank ${lora.rank}, alpha ${lora.alpha}${layers}`];
}

function sumRows(tensors: readonly TensorRow[]): Row[] {
  if (tensors.length === 0) {
    return [['tensors', 'none: a run from here starts from random weights']];
  }
  return sumsOf(tensors).map((sum) => {
    const { kind, dtype, numbers, bytes } = sum;
    return [
      'tensors',
      `${sum.tensors} of kind ${kind}: ${numbers.toLocaleString('en')} ${dtype} numbers, ${formatBytes(bytes)}`,
    ];
  });
}

function tensorRow({ name, dtype, shape, bytes }: TensorRow): Row {
  return [name, `${dtype} [${shape.join(', ')}], ${formatBytes(bytes)}`];
}

function table(rows: readonly Row[]): string[] {
  const width = Math.max(0, ...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `${name.padEnd(width)}  ${value}`);
}

function lines(all: readonly string[]): string {
  return all.map((line) => `${line}\n`).join('');
}
