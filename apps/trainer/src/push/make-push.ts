// Makes of a run what is pushed: its files, the card among them, and what is to be said of them.

import type { License, PushFile } from '../hub/hub-push.js';
import { modelCard } from './model-card.js';
import { publicConfig } from './public-text.js';
import { dataHashes, isResultFile, pushedFiles, textFile } from './pushed-files.js';
import type { PushedRun } from './pushed-run.js';

export interface MakePushOptions {
  /** The name of the repository. */
  readonly repo: string;
  /** The paths of GGUF files. */
  readonly ggufs: readonly string[];
  readonly version: string;
  readonly signal: AbortSignal;
  readonly licenseOf: (base: string) => Promise<License | undefined>;
}

export interface MadePush {
  readonly files: readonly PushFile[];
  /** The title of the commit. */
  readonly title: string;
  /** Sentences about what others do not see. */
  readonly notes: readonly string[];
  /** Whether a file of that name is one that this push replaces or removes. */
  readonly isOurs: (name: string) => boolean;
}

/** @throws {UsageError} for files that can't be pushed */
export async function makePush(run: PushedRun, options: MakePushOptions): Promise<MadePush> {
  const { repo, ggufs, version, signal, licenseOf } = options;
  const config = publicConfig(run.config);
  const files = await pushedFiles(run, { ggufs, config });
  const names = files.map(({ path }) => path);
  const card = modelCard(run, {
    ...{ repo, version },
    hashes: await dataHashes(run, signal),
    license: run.base && (await licenseOf(run.base.repo)),
    ggufs: names.filter((name) => name.endsWith('.gguf')),
  });
  const { left, named } = config;
  const step = run.summary?.final?.step ?? run.steps.at(-1)?.step;
  return {
    files: [textFile('README.md', card), ...files],
    title: `${run.kind === 'adapter' ? 'Adapters' : 'Model'} of ${step ?? 0} steps, by shardweave`,
    notes: [
      ...(left.length === 0
        ? []
        : [`config.yaml is without ${left.join(', ')}: paths of this machine`]),
      ...(named.length === 0
        ? []
        : [`config.yaml has names in place of paths for ${named.join(', ')}`]),
    ],
    isOurs: (name) => isResultFile(name, run.kind),
  };
}
