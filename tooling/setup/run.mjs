// The root commands. Each one does its own set-up and then its work. This is plain JavaScript
// without dependencies, since it runs before anything is installed.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { buildAll } from './build.mjs';
import { installCollectiveRivals } from './collective-rivals.mjs';
import { installDependencies, installRivals } from './install.mjs';
import { installNodes, NODES, nodeOf } from './nodes.mjs';
import { ROOT } from './root.mjs';
import { SetupError } from './setup-error.mjs';
import { transformersForTests } from './transformers.mjs';

const VITEST = join(ROOT, 'node_modules/vitest/vitest.mjs');

/**
 * Arguments of vitest for the tests of what differs between versions of Node: sockets, threads, and
 * private fields.
 */
const CORE = [
  [
    'packages/collectives/test/conformance.test.ts',
    'packages/collectives/test/direct-read.test.ts',
    'packages/collectives/test/shm-threads.test.ts',
    'packages/tensor-core/test/cpu-backend.test.ts',
    'packages/tensor-core/test/cpu-threads.test.ts',
    'packages/tensor-core/test/native-products.test.ts',
  ],
  // This is one run of the trainer over each transport.
  [
    'apps/trainer/test/command.test.ts',
    'apps/trainer/test/mpi.test.ts',
    '-t',
    ': the bits of ranks in one (thread|process)',
  ],
];

/**
 * Commands of apps/trainer's binary. Its `doctor` is not among them, since that name is the clone's
 * own, which hands on what it is asked for beyond its report.
 */
const SHARDWEAVE = [
  'train',
  'generate',
  'eval',
  'plan',
  'inspect',
  'convert',
  'merge',
  'gguf',
  'onnx',
  'embed',
  'push',
  'join',
  'leave',
  'verify',
  'replay',
  'bisect',
  'report',
  'dashboard',
];

const COMMANDS = {
  ...Object.fromEntries(SHARDWEAVE.map((name) => [name, (args) => shardweave([name, ...args])])),
  build,
  test: (args) => test(args, {}),
  'test:nodes': testNodes,
  'test:long': testLong,
  bench,
  kernels,
  'one-hash': oneHash,
  mutants,
  docs,
  doctor,
};

/**
 * Runs one root command and sets the exit code. A failed set-up step is reported in one sentence.
 */
export async function run([name, ...args]) {
  const command = COMMANDS[name];
  if (!command) {
    console.error(`shardweave: expected one of ${Object.keys(COMMANDS).join(', ')}, got ${name}`);
    process.exitCode = 2;
    return;
  }
  try {
    await command(args);
  } catch (error) {
    if (!(error instanceof SetupError)) {
      throw error;
    }
    console.error(`set-up: ${error.message}`);
    process.exitCode = 1;
  }
}

/** Builds all packages with their declarations, as they are published. */
async function build() {
  await installDependencies();
  await buildAll();
}

/** Runs a command of the binary `shardweave`. */
async function shardweave(args) {
  const parent = process.ppid;
  await installDependencies();
  await buildAll({ needsTypes: false });
  if (process.ppid !== parent) {
    // npm got a SIGTERM meanwhile and ended the shell between; nobody would end this process.
    process.exitCode = 143;
    return;
  }
  // It runs in this process and not in a child. So a signal to the command reaches the launcher of
  // the ranks itself, and killing the command leaves no parent behind.
  const main = join(ROOT, 'apps/trainer/dist/main.js');
  // npm starts scripts in the project's folder. Paths in flags are relative to where the user
  // called it.
  if (process.env.INIT_CWD !== undefined) {
    process.chdir(process.env.INIT_CWD);
  }
  process.argv = [process.execPath, main, ...args];
  await import(pathToFileURL(main).href);
}

async function test(args, environment) {
  await installDependencies();
  // The build computes in processes of its own while apt downloads.
  const [{ driver, browser, mpi, blas }] = await Promise.all([systemParts(), buildAll()]);
  process.exitCode = await runChild(process.execPath, [VITEST, 'run', ...args], {
    ...process.env,
    ...driver.environment,
    // An adapter was found, so from here on a test that finds none must fail instead of skipping.
    SHARDWEAVE_REQUIRE_WEBGPU: '1',
    ...browser.environment,
    ...mpi.environment,
    ...blas.environment,
    ...environment,
  });
}

/** Runs all tests, with what only the long ones need. */
async function testLong(args) {
  await installDependencies();
  const { environment } = await transformersForTests();
  await test(args, { ...environment, SHARDWEAVE_LONG: '1' });
}

/** Provides what tests need of the machine: a WebGPU driver, a browser, an mpirun, a BLAS. */
async function systemParts() {
  const { webgpuDriver } = await import('./webgpu-driver.mjs');
  const { chromiumForTests } = await import('./chromium.mjs');
  const { blasForTests } = await import('./open-blas.mjs');
  const { mpiForTests } = await import('./open-mpi.mjs');
  const driver = await webgpuDriver();
  const browser = await chromiumForTests();
  return { driver, browser, mpi: mpiForTests(), blas: blasForTests() };
}

/** Runs the core of the tests with each of the other versions of Node. */
async function testNodes() {
  await installDependencies();
  await buildAll();
  await installNodes();
  for (const version of NODES) {
    for (const args of CORE) {
      console.log(`Node ${version}: ${args.join(' ')}`);
      const code = await runChild(nodeOf(version), [VITEST, 'run', ...args], process.env);
      if (code !== 0) {
        process.exitCode = code;
        return;
      }
    }
  }
}

/** `bench NAME ...` runs bench/NAME.mjs, and `bench ...` without a name runs bench/run.mjs. */
async function bench(args) {
  const isNamed = existsSync(join(ROOT, 'bench', `${args[0]}.mjs`));
  const [name, ...rest] = isNamed ? args : ['run', ...args];
  const script = join(ROOT, 'bench', `${name}.mjs`);
  if (name === 'figures') {
    process.exitCode = await runChild(process.execPath, [script, ...rest], process.env);
    return;
  }
  await installDependencies();
  await installRivals();
  await buildAll();
  if (name === 'collectives') {
    installCollectiveRivals();
  }
  const { webgpuDriver } = await import('./webgpu-driver.mjs');
  const driver = await webgpuDriver();
  process.exitCode = await runChild(process.execPath, [script, ...rest], {
    ...process.env,
    ...driver.environment,
  });
}

/** Shows the text of kernels and what a GPU's compiler makes of it. */
async function kernels(args) {
  await installDependencies();
  await buildAll({ needsTypes: false });
  const script = join(ROOT, 'bench/kernels/show.mjs');
  process.exitCode = await runChild(process.execPath, [script, ...args], process.env);
}

/** Trains small models in all engines of this machine, and compares their weights. */
async function oneHash(args) {
  await installDependencies();
  await buildAll({ needsTypes: false }); // some sources are generated by the build
  const script = join(ROOT, 'tooling/one-hash/run.mjs');
  process.exitCode = await runChild(process.execPath, [script, ...args], process.env);
}

async function mutants(args) {
  await installDependencies();
  await buildAll();
  const { webgpuDriver } = await import('./webgpu-driver.mjs');
  const driver = await webgpuDriver();
  process.exitCode = await runChild(
    process.execPath,
    [join(ROOT, 'tooling/mutants/run.mjs'), ...args],
    {
      ...process.env,
      ...driver.environment,
      SHARDWEAVE_REQUIRE_WEBGPU: '1',
    },
  );
}

/** Makes the API reference, as pages in `.shardweave/docs`. */
async function docs() {
  await installDependencies();
  await buildAll({ needsTypes: false }); // some sources are generated by the build
  const script = join(ROOT, 'tooling/api-reference/build.mjs');
  process.exitCode = await runChild(process.execPath, [script], process.env);
}

async function doctor(args) {
  if (args.length > 0) {
    await shardweave(['doctor', ...args]);
    return;
  }
  const { doctor: report } = await import('./doctor.mjs');
  await report();
}

/**
 * Waits for a child that uses this terminal. A signal to this process is passed on to the child.
 */
async function runChild(file, args, env) {
  const child = spawn(file, args, { cwd: ROOT, stdio: 'inherit', env });
  // A terminal sends Ctrl-C to the child as well. Here it must only not end the wait for the child.
  process.on('SIGINT', () => {});
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => {
      if (code !== null) {
        return resolve(code);
      }
      console.error(`the test runner was ended by ${signal}`);
      console.log('0 passed, 1 failed, 0 skipped');
      resolve(signal === 'SIGINT' ? 130 : 1);
    });
  });
}
