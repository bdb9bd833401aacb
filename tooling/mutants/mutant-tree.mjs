// A copy of the tree into which mutants are put, one at a time. Dependencies are linked and not
// copied. What packages import from each other is found inside the copy.
import { execFileSync, spawn } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { packageFolders } from '../setup/hash-files.mjs';
import { ROOT } from '../setup/root.mjs';

/**
 * A test run that takes longer has hung. On an idle machine the slowest of the named tests takes
 * less than a minute.
 */
const LONGEST_RUN_MS = 300_000;

export class MutantTree {
  #root;
  /** Whether a test passes without any mutant. The key is its file and name. */
  #sound = new Map();

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

  /** @returns {Promise<{outcome: 'killed' | 'survived' | 'broken', detail: string}>} */
  async judge(mutant) {
    const key = `${mutant.test}\0${mutant.name ?? ''}`;
    if (!this.#sound.has(key)) {
      this.#sound.set(key, await this.#test(mutant));
    }
    const sound = this.#sound.get(key);
    if (sound.numFailed > 0 || sound.numPassed === 0 || sound.isStuck) {
      return { outcome: 'broken', detail: `without it: ${describe(sound)}` };
    }
    const path = join(this.#root, mutant.file);
    const text = readFileSync(path, 'utf8');
    try {
      writeFileSync(
        path,
        text.replace(mutant.find, () => mutant.replace),
      );
      this.#compile(mutant.file);
      const result = await this.#test(mutant);
      if (result.isStuck || result.numFailed > 0) {
        return { outcome: 'killed', detail: describe(result) };
      }
      const outcome = result.numPassed > 0 ? 'survived' : 'broken';
      return { outcome, detail: describe(result) };
    } finally {
      writeFileSync(path, text);
      this.#compile(mutant.file);
    }
  }

  /**
   * Compiles what tests run instead of the source itself: kernels in AssemblyScript as the
   * generated WebAssembly, and heartbeat workers as text.
   */
  #compile(file) {
    const isKernel = file.includes('/assembly/') || file.endsWith('.as.ts');
    const isWorker = /^packages\/collectives\/src\/(sockets|transports\/ws)\//.test(file);
    if (!isKernel && !isWorker) {
      return;
    }
    const folder = join(this.#root, file.split('/').slice(0, 2).join('/'));
    const script = join(this.#root, `tooling/${isKernel ? 'asc' : 'workers'}/build.mjs`);
    execFileSync(process.execPath, [script], { cwd: folder, stdio: 'ignore' });
  }

  /** Runs the test that a mutant names, in the tree as it is now. */
  async #test({ test, name }) {
    const report = join(this.#root, 'report.json');
    rmSync(report, { force: true });
    const args = ['run', test, '--bail=1', '--reporter=json', `--outputFile=${report}`];
    if (name !== undefined) {
      args.push('-t', escapePattern(name));
    }
    const isStuck = await this.#vitest(args);
    if (!existsSync(report)) {
      return { numPassed: 0, numFailed: 0, isStuck, message: 'no report' };
    }
    const { numPassedTests, numFailedTests, testResults } = JSON.parse(
      readFileSync(report, 'utf8'),
    );
    const message = testResults[0]?.message ?? '';
    return { numPassed: numPassedTests, numFailed: numFailedTests, isStuck, message };
  }

  /** Runs vitest. The result says whether the run had to be ended. */
  #vitest(args) {
    const binary = join(this.#root, 'node_modules/vitest/vitest.mjs');
    // It has a process group of its own, so that whatever the tests start ends with them.
    const child = spawn(process.execPath, [binary, ...args], {
      cwd: this.#root,
      stdio: 'ignore',
      detached: process.platform !== 'win32',
    });
    let isStuck = false;
    const timer = setTimeout(() => {
      isStuck = true;
      process.kill(process.platform === 'win32' ? child.pid : -child.pid, 'SIGKILL');
    }, LONGEST_RUN_MS);
    return new Promise((resolve, reject) => {
      child.on('error', reject);
      child.on('close', () => {
        clearTimeout(timer);
        resolve(isStuck);
      });
    });
  }
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
