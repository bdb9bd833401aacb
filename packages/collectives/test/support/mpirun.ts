// This starts ranks under a real mpirun of Open MPI or MPICH, and collects what each one wrote.

import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bundleProgram } from './bundle-program.js';

/** A folder below the package, since the bundle finds koffi only from there. */
const FOLDER = fileURLToPath(new URL('../../node_modules/', import.meta.url));

/** A loaded machine took 20 s for eight ranks on two cores. */
const LIMIT_MS = 120_000;

export interface MpirunResult {
  /** The result of a program on each rank, undefined where there was none. */
  readonly resultsOf: (program: string) => readonly unknown[];
  readonly exitCode: number | null;
  /** Both output streams of mpirun and of all ranks. */
  readonly output: string;
}

/**
 * Returns why no ranks can be started here, or undefined where they can. The reason becomes part of
 * a skipped test's name.
 */
export function mpiProblem(): string | undefined {
  const { error } = spawnSync('mpirun', ['--version']);
  return error === undefined ? undefined : (process.env.SHARDWEAVE_NO_MPI ?? 'no mpirun was found');
}

/** This is a bundled program that is started as ranks. Disposing it removes its files. */
export class MpiProgram implements Disposable {
  readonly #folder = mkdtempSync(join(FOLDER, '.mpi-test-'));

  /** Bundles a TypeScript file of this folder. */
  async build(file: string): Promise<void> {
    await bundleProgram(new URL(file, import.meta.url), join(this.#folder, 'rank.mjs'));
  }

  /** Runs `worldSize` ranks, which run these programs one after another. */
  async run(worldSize: number, ...names: readonly string[]): Promise<MpirunResult> {
    const results = mkdtempSync(join(this.#folder, 'results-'));
    const files = mkdtempSync(join(tmpdir(), 'mpi-'));
    const script = join(this.#folder, 'rank.mjs');
    const command = [
      ...mpirunFlags(),
      '-np',
      String(worldSize),
      process.execPath,
      script,
      ...names,
    ];
    const child = spawn('mpirun', command, {
      // Runs at the same time would make Open MPI's folder of files in the same moment, and fail.
      env: { ...process.env, SHARDWEAVE_RESULTS: results, OMPI_MCA_orte_tmpdir_base: files },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        output += text;
      });
    }
    // mpirun then ends its ranks too.
    const timer = setTimeout(() => child.kill('SIGTERM'), LIMIT_MS);
    const exitCode = await new Promise<number | null>((resolve) => child.on('close', resolve));
    clearTimeout(timer);
    const written = Array.from({ length: worldSize }, (_, rank) => readResults(results, rank));
    return {
      resultsOf: (program) => written.map((ofRank) => ofRank?.[program]),
      exitCode,
      output,
    };
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/**
 * Returns flags for more ranks than cores, bound to none, under the account that runs the tests.
 */
function mpirunFlags(): readonly string[] {
  const isOpenMpi = spawnSync('mpirun', ['--version'], { encoding: 'utf8' }).stdout.includes(
    'Open',
  );
  const isRoot = process.getuid?.() === 0;
  return isOpenMpi
    ? ['--oversubscribe', '--bind-to', 'none', ...(isRoot ? ['--allow-run-as-root'] : [])]
    : [];
}

function readResults(folder: string, rank: number): Record<string, unknown> | undefined {
  try {
    return JSON.parse(readFileSync(join(folder, `${rank}.json`), 'utf8'));
  } catch {
    return undefined;
  }
}
