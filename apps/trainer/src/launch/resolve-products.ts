// Decides, once for all ranks, what computes the matrix products of their cpu devices.

import { readLauncher } from '@shardweave/collectives/launch';
import { withoutStop } from '@shardweave/dtypes/messages';
import { findNativeProducts } from '@shardweave/tensor-core/cpu';
import { kindOf } from '../device-choice.js';
import { UsageError } from '../errors.js';
import type { Flags } from '../flags/train-flags.js';
import { libraryOf } from '../numeric-class.js';
import { explainProducts } from '../rank/device-host.js';
import type { RunConfig } from '../run-config.js';
import { lookForSaves } from '../saves/resume-run.js';

/** What computes products, with `auto` decided. */
export type Products = Exclude<Flags['products'], 'auto'>;

type Asked = Pick<RunConfig, 'products' | 'device' | 'transport' | 'resume' | 'out'> &
  Partial<Pick<RunConfig, 'gradientGroups'>>;

/** What a machine has. */
interface Machine {
  /** The environment of the process, in which a launcher tells how many hosts there are. */
  readonly env?: NodeJS.ProcessEnv;
  readonly find?: Find;
}

type Find = typeof findNativeProducts;

/**
 * A library of the machine where there is one, but for runs whose bits others have to share: with
 * groups of rows, over several hosts, and where the steps before were computed in wasm.
 * @throws {UsageError} where a library is asked for that can't be had, or one other than that of
 * the steps before would go on
 */
export async function resolveProducts(
  asked: Asked,
  { env = process.env, find = findNativeProducts }: Machine = {},
): Promise<Products> {
  const { products, device, gradientGroups } = asked;
  const isPortable = products === 'auto' && gradientGroups !== undefined;
  if (products === 'wasm' || isPortable || !device.some((choice) => kindOf(choice) === 'cpu')) {
    return 'wasm';
  }
  if (products === 'native') {
    await requireLibrary(find);
    return 'native';
  }
  const before = await productsBefore(asked);
  if (before !== undefined) {
    return before === 'wasm' ? 'wasm' : await sameLibrary(before, find);
  }
  const found = spansHosts(asked, env) ? undefined : await libraryHere(find);
  return found === undefined ? 'wasm' : 'native';
}

/** What computed the steps that the run goes on from: wasm, or a library. */
async function productsBefore({ resume, out }: Asked): Promise<string | undefined> {
  if (resume === undefined) {
    return undefined;
  }
  const { found } = await lookForSaves(resume, { out });
  const newest = found.flatMap((save) => ('record' in save ? [save.record] : []))[0];
  return newest && (newest.numericClasses.map(libraryOf).find(Boolean) ?? 'wasm');
}

async function sameLibrary(before: string, find: Find): Promise<Products> {
  const here = await find().then(
    ({ name }) => ({ name }),
    ({ message }: Error) => ({ message }),
  );
  if (!('name' in here)) {
    throw new UsageError(
      `--resume: the steps before have products by ${before}, which can't be had here (${withoutStop(here.message)}). To go on with other bits use --products wasm.`,
    );
  }
  if (here.name !== before) {
    throw new UsageError(
      `--resume: the steps before have products by ${before}, and this machine has ${here.name}. Install that one, or go on with other bits by --products native.`,
    );
  }
  return 'native';
}

function spansHosts({ transport }: Asked, env: NodeJS.ProcessEnv): boolean {
  const place = transport === 'mpi' ? readLauncher(env) : undefined;
  return place !== undefined && place.localWorldSize !== place.worldSize;
}

async function libraryHere(find: Find): Promise<string | undefined> {
  try {
    return (await find()).name;
  } catch {
    return undefined;
  }
}

async function requireLibrary(find: Find): Promise<void> {
  try {
    await find();
  } catch (cause) {
    throw explainProducts(cause);
  }
}
