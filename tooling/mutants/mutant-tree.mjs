// A copy of the tree into which mutants are put, one at a time. Dependencies are linked and not
// copied. What packages import from each other is found inside the copy.
import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { packageFolders } from '../setup/hash-files.mjs';
import { ROOT } from '../setup/root.mjs';

/**
 * A test run that takes longer has hung. On an idle machine the slowest of the named tests takes
 * less than a minute.
 */
const LONGEST_RUN_MS = 300_000;

export class MutantTree {
  #root;
  #host;
  /** Files that are not as the vitest has read them. */
  #changed = [];

  constructor(root) {
    this.#root = root;
    rmSync(root, { recursive: true, force: true });
    const listed = ['ls-files', '--cached', '--others', '--exclude-standard', '-z'];
    const files = execFileSync('git', listed, { cwd: ROOT, encoding: 'utf8' }).split('\0');
    for (const file of files) {
      if (file === '' || !existsSync(join(ROOT, file))) {
        continue; // deleted, but not yet committed
      }
      mkdirSync(dirname(join(root, file)), { recursive: true });
      cpSync(join(ROOT, file), join(root, file));
    }
    symlinkSync(join(ROOT, 'node_modules'), join(root, 'node_modules'), 'junction');
    for (const folder of [...packageFolders(), 'examples']) {
      for (const name of ['node_modules', 'dist', 'src/generated']) {
        const path = join(folder, name);
        if (!existsSync(join(ROOT, path))) {
          continue;
        }
        cpSync(join(ROOT, path), join(root, path), { recursive: true, verbatimSymlinks: true });
      }
    }
  }

  /**
   * Judges mutants that name one test file, and yields each verdict as it comes. The file runs once
   * without any of them, for all that they name in it.
   *
   * @param {import('./read-lists.mjs').Mutant[]} mutants
   */
  async *judge(mutants) {
    const [{ test }] = mutants;
    const without = await this.#test(
      test,
      mutants.map(({ name }) => name),
    );
    for (const mutant of mutants) {
      const sound = countOf(without, mutant.name);
      if (sound.numFailed > 0 || sound.numPassed === 0 || sound.isStuck) {
        yield { mutant, outcome: 'broken', detail: `without it: ${describe(sound)}` };
        continue;
      }
      const { name } = mutant;
      const ran = await this.#mutated(mutant, () => this.#test(test, [name], 1));
      const count = countOf(ran, name);
      if (count.isStuck || count.numFailed > 0) {
        yield { mutant, outcome: 'killed', detail: describe(count) };
      } else {
        const outcome = count.numPassed > 0 ? 'survived' : 'broken';
        yield { mutant, outcome, detail: describe(count) };
      }
    }
  }

  /**
   * Calls `body` while the mutant is in place. Tests run compiled text instead of some sources:
   * kernels in AssemblyScript as WebAssembly, and heartbeat workers. Those are built for the mutant
   * and put back as they were, for a build takes longer than most tests.
   */
  async #mutated({ file, find, replace }, body) {
    const path = join(this.#root, file);
    const text = readFileSync(path, 'utf8');
    const script = buildScriptOf(file);
    const folder = join(this.#root, file.split('/').slice(0, 2).join('/'));
    const generated = script === undefined ? [] : readAll(join(folder, 'src/generated'));
    // What vitest itself has loaded, such as a plugin, it loads once.
    const isOfHost = file.startsWith('tooling/');
    try {
      if (isOfHost) {
        await this.close();
      }
      writeFileSync(
        path,
        text.replace(find, () => replace),
      );
      if (script !== undefined) {
        const build = join(this.#root, script);
        execFileSync(process.execPath, [build], { cwd: folder, stdio: 'ignore' });
      }
      this.#changed.push(path, ...generated.map(([output]) => output));
      return await body();
    } finally {
      writeFileSync(path, text);
      for (const [output, bytes] of generated) {
        writeFileSync(output, bytes);
      }
      this.#changed.push(path, ...generated.map(([output]) => output));
      if (isOfHost) {
        await this.close();
      }
    }
  }

  /** Runs those tests of a file whose title holds one of `names`, in the tree as it is now. */
  async #test(file, names, bail = 0) {
    const report = join(this.#root, 'report.json');
    rmSync(report, { force: true });
    const pattern = names.includes(undefined)
      ? undefined
      : [...new Set(names)].map(escapePattern).join('|');
    if (this.#host?.connected !== true) {
      this.#host = await startHost(this.#root, report);
    }
    const isStuck = await runOn(this.#host, { file, pattern, bail, changed: this.#changed });
    this.#changed = [];
    if (isStuck) {
      await this.close();
    }
    if (!existsSync(report)) {
      return { tests: [], isStuck, message: 'no report' };
    }
    const { testResults } = JSON.parse(readFileSync(report, 'utf8'));
    const tests = testResults.flatMap(({ assertionResults }) => assertionResults);
    return { tests, isStuck, message: testResults[0]?.message ?? '' };
  }

  /** Ends the tree's vitest, with whatever its tests started. */
  async close() {
    const host = this.#host;
    this.#host = undefined;
    if (host !== undefined && host.exitCode === null) {
      const ended = once(host, 'close');
      process.kill(process.platform === 'win32' ? host.pid : -host.pid, 'SIGKILL');
      await ended;
    }
  }
}

/** Starts a vitest in a process group of its own, so that whatever its tests start ends with it. */
async function startHost(root, report) {
  const host = fork(join(root, 'tooling/mutants/test-host.mjs'), [root, report], {
    cwd: root,
    stdio: 'ignore',
    detached: process.platform !== 'win32',
  });
  await Promise.race([once(host, 'message'), once(host, 'close')]);
  return host;
}

/** Has a run made, and says whether it never ended. One whose process ends has made no report. */
async function runOn(host, run) {
  const told = new AbortController();
  const { signal } = told;
  const ended = Promise.race([once(host, 'message', { signal }), once(host, 'close', { signal })]);
  const late = delay(LONGEST_RUN_MS, true, { signal });
  host.send(run, () => {}); // one that has ended closes
  try {
    return (await Promise.race([ended, late])) === true;
  } finally {
    told.abort();
    await Promise.allSettled([ended, late]);
  }
}

/** The script that compiles what tests run instead of a source, where there is one. */
function buildScriptOf(file) {
  if (file.includes('/assembly/') || file.endsWith('.as.ts')) {
    return 'tooling/asc/build.mjs';
  }
  const isWorker = /^packages\/collectives\/src\/(sockets|transports\/ws)\//.test(file);
  return isWorker ? 'tooling/workers/build.mjs' : undefined;
}

/** The path and the bytes of each file in a folder. */
function readAll(folder) {
  return readdirSync(folder).map((name) => {
    const path = join(folder, name);
    return [path, readFileSync(path)];
  });
}

/** What became of the tests whose title holds `name`, or of all where it is undefined. */
function countOf({ tests, isStuck, message }, name = '') {
  const named = tests.filter(({ fullName }) => fullName.includes(name));
  const numOf = (wanted) => named.filter(({ status }) => status === wanted).length;
  return { numPassed: numOf('passed'), numFailed: numOf('failed'), isStuck, message };
}

function describe({ numPassed, numFailed, isStuck, message }) {
  if (isStuck) {
    return 'the test never ended';
  }
  const counts = `${numFailed} failed, ${numPassed} passed`;
  return numFailed + numPassed === 0 ? `${counts}: ${message.split('\n')[0]}` : counts;
}

/** Escapes a name for `-t`, which takes a regular expression. */
function escapePattern(text) {
  return text.replaceAll(/[\\^$.*+?()[\]{}|]/g, '\\$&');
}
