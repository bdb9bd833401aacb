// Opens a module that people write: imports its file, calls its `create`, and checks what that
// gives.

import { pathToFileURL } from 'node:url';
import * as nn from '@shardweave/nn';
import * as tensor from '@shardweave/tensor-core';
import { shown } from '@shardweave/tensor-core/options';
import { COMPUTE_DTYPES, type ModuleSource, type RunConfig } from '../run-config.js';
import type { ModuleConfig } from '../task/text-config.js';
import type { OwnModel, OwnModelFile, OwnRows } from './own-model.js';
import { inTheirCode, mistakeIn } from './their-code.js';

/** What decides a run's model, as far as a module of people has to know it. */
export type OwnChoice = Pick<RunConfig, 'model' | 'modelConfig' | 'precision' | 'seed'>;

/** A sharded layer in a Sequential lies some fifteen calls below the file's own lines. */
const STACK_LINES = 60;

/** A model with the path of its file. */
export interface OpenedOwnModel extends OwnModel {
  readonly path: string;
}

/**
 * The model of the file that a run names; undefined where it trains one of ours.
 * @throws {UsageError} where the file can't be imported, its code throws, or it gives something
 * else than a model
 */
export async function openOwnModel(
  device: tensor.Device,
  { model, modelConfig, precision, seed }: OwnChoice,
): Promise<OpenedOwnModel | undefined> {
  if (model.kind !== 'module' || modelConfig.model_type !== 'module') {
    return undefined;
  }
  const { path } = model;
  const create = await importCreate(model);
  const { seq, vocab_size: vocabularySize } = modelConfig;
  const init = new nn.ParameterInit(device, { seed, isDeferred: true });
  const dtype = COMPUTE_DTYPES[precision];
  const made: unknown = await inTheirCode({ path, name: 'create' }, () =>
    create({ device, init, nn, tensor, seed, seq, vocabularySize, dtype }),
  );
  checkModel(made, path, device);
  const { module, loss, rows, validRows } = made;
  return { module, loss, rows, validRows, path };
}

/** What a run has to know of a file's model: it is made on a device that computes nothing. */
export async function describeOwnModel(
  model: ModuleSource,
  given: Pick<ModuleConfig, 'seq' | 'vocab_size'> & Pick<OwnChoice, 'precision' | 'seed'>,
): Promise<ModuleConfig> {
  const { seq, vocab_size, precision, seed } = given;
  const asked = {
    model_type: 'module',
    seq,
    vocab_size,
    parameters: 0,
    blocks: 0,
    isSequential: true,
  } as const;
  return await onDryDevice({ model, modelConfig: asked, precision, seed }, (own) => {
    const { module, rows, validRows } = own;
    return {
      ...asked,
      parameters: module.parameters().reduce((sum, { size }) => sum + size, 0),
      blocks: ownBlocks(module).length,
      isSequential: module instanceof nn.Sequential,
      rows: rows && { train: rows.count, valid: validRows?.count },
    };
  });
}

/** The rows that a file's model has itself; they need no device. */
export async function openOwnRows(
  choice: OwnChoice,
): Promise<{ readonly train: OwnRows<unknown>; readonly valid: OwnRows<unknown> | undefined }> {
  return await onDryDevice(choice, ({ rows, validRows }) => ({ train: rows!, valid: validRows }));
}

async function onDryDevice<T>(choice: OwnChoice, use: (own: OpenedOwnModel) => T): Promise<T> {
  const info = tensor.cpuInfo({ threads: 1 });
  const device = new tensor.Device(tensor.createDryBackend({ info }));
  try {
    return use((await openOwnModel(device, choice))!);
  } finally {
    device.dispose();
  }
}

/** A module that is sharded, offloaded or checkpointed by itself. */
export interface Block {
  readonly owner: nn.Module;
  /** Its name as a child of its owner. */
  readonly name: string;
  readonly module: nn.Module;
}

/**
 * The layers of a Sequential, and those in ModuleLists, whose parameters no other part of the model
 * has, too. What lies inside of a block is no block.
 */
export function ownBlocks(model: nn.Module): readonly Block[] {
  const all = model.namedModules().map(([, module]) => module);
  return blocksBelow(model).filter(({ module }) => {
    const inside = new Set(module.namedModules().map(([, part]) => part));
    const outside = all.filter((part) => !inside.has(part));
    const others = new Set(outside.flatMap((part) => [...part.ownParameters().values()]));
    const own = module.parameters();
    return own.length > 0 && own.every((parameter) => !others.has(parameter));
  });
}

function blocksBelow(owner: nn.Module): readonly Block[] {
  const isList = owner instanceof nn.Sequential || owner instanceof nn.ModuleList;
  return [...owner.children()].flatMap(([name, module]) =>
    isList ? [{ owner, name, module }] : blocksBelow(module),
  );
}

/** The hash in the name lets a process that lives on import a file again whose text has changed. */
async function importCreate({ path, sha256 }: ModuleSource): Promise<OwnModelFile['create']> {
  const name = `${pathToFileURL(path).href}?text=${sha256.slice(0, 12)}`;
  // Ten lines of a stack, as Node keeps, end within a wrapper before they come to the file.
  Error.stackTraceLimit = Math.max(Error.stackTraceLimit, STACK_LINES);
  const file = await inTheirCode({ path, name: 'its import' }, async () => {
    try {
      return (await import(/* @vite-ignore */ name)) as Partial<OwnModelFile>;
    } catch (error) {
      throw withHint(error);
    }
  });
  if (typeof file.create !== 'function') {
    const names = Object.keys(file).join(', ') || 'nothing';
    throw mistakeIn(
      path,
      `expected a file that exports create, got ${names}. Write export function create({ device, init }) { ... }, which returns { module, loss }.`,
    );
  }
  return file.create;
}

/** An error of an import, with what helps where it is not the text that is wrong. */
function withHint(error: unknown): unknown {
  const { code, message = '' } = Object(error) as { code?: string; message?: string };
  const hint =
    code === 'ERR_UNKNOWN_FILE_EXTENSION'
      ? 'This Node runs no TypeScript: take Node 22.18 or newer, or compile the file.'
      : code === 'ERR_MODULE_NOT_FOUND' && message.includes('@shardweave/')
        ? "Install it in the project of shardweave, or take nn and tensor from create's argument."
        : undefined;
  return hint === undefined
    ? error
    : Object.assign(error as Error, { message: `${message.replace(/\.?$/, '.')} ${hint}` });
}

function checkModel(made: unknown, path: string, device: tensor.Device): asserts made is OwnModel {
  const refuse = (what: string, expected: string, got: unknown, hint = ''): never => {
    throw mistakeIn(path, `${what}: expected ${expected}, got ${shown(got)}.${hint}`);
  };
  if (typeof made !== 'object' || made === null) {
    refuse('create', 'an object { module, loss }', made);
  }
  const { module, loss, rows, validRows } = made as Partial<OwnModel>;
  if (!(module instanceof nn.Module)) {
    const hint = nn.isModule(module)
      ? " It comes from another copy of @shardweave/nn than the trainer's: install both in one project, or take nn and tensor from create's argument."
      : '';
    refuse('create', 'module to be a Module of @shardweave/nn', module, hint);
  }
  if (module!.device !== device) {
    throw mistakeIn(
      path,
      'create: expected a module on the device that it was given, got another.',
    );
  }
  if (typeof loss !== 'function') {
    refuse('create', 'loss to be a function of a module and a batch', loss);
  }
  for (const [name, given] of Object.entries({ rows, validRows })) {
    const { count, batch, targets = () => 1 } = given ?? { count: 1, batch: () => {} };
    if (!Number.isSafeInteger(count) || count < 1 || count >= 2 ** 32) {
      refuse(`${name}.count`, 'a number of rows, at least one', count);
    }
    if (typeof batch !== 'function' || typeof targets !== 'function') {
      refuse(name, '{ count, batch } with functions of rows', given);
    }
  }
  if (validRows !== undefined && rows === undefined) {
    refuse('create', 'rows beside validRows', rows, ' For tokens give --valid.');
  }
}
