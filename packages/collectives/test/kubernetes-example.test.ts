// These tests check the Kubernetes examples as far as that is possible without a cluster. The files
// agree where they must, and each container's command forms a group when network namespaces stand
// in for the pods and know each other by the names that the Service would give them.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { createLan, lanProblem } from './support/netns.js';
import { programResult } from './support/run-program.js';

const LIMIT_MS = 40_000;
const examples = new URL('../../../examples/', import.meta.url);
const folder = newFolder();

beforeAll(async () => {
  writeFileSync(join(folder, 'secret'), 'of the Kubernetes Secret\n');
  await bundleProgram(new URL('all-reduce.mjs', examples), join(folder, 'all-reduce.mjs'));
});

interface Variable {
  readonly name: string;
  readonly value?: string;
  readonly valueFrom?: { readonly fieldRef: { readonly fieldPath: string } };
}

interface JobSpec {
  readonly completionMode: string;
  readonly completions: number;
  readonly parallelism: number;
  readonly template: {
    readonly spec: {
      readonly subdomain?: string;
      readonly containers: readonly [
        {
          readonly command: readonly string[];
          readonly env: readonly Variable[];
          readonly volumeMounts: readonly [{ readonly name: string; readonly mountPath: string }];
        },
      ];
      readonly volumes: readonly [
        { readonly name: string; readonly secret: { readonly secretName: string } },
      ];
    };
  };
}

// biome-ignore lint/suspicious/noExplicitAny: the tests look at what the file says.
function read(name: string): readonly any[] {
  const documents = parseAllDocuments(
    readFileSync(new URL(`kubernetes/${name}`, examples), 'utf8'),
  );
  expect(documents.flatMap(({ errors }) => errors)).toEqual([]);
  return documents.map((document) => document.toJS());
}

/**
 * Returns the environment of the pod with this `index`. `labels` are those that the downward API
 * would give.
 */
function podEnvironment(job: JobSpec, index: number, pod: PodFacts): Record<string, string> {
  const [container] = job.template.spec.containers;
  const own = container.env.map(({ name, value, valueFrom }) => {
    const found = value ?? pod.fields[valueFrom?.fieldRef.fieldPath ?? ''];
    expect(found, `${name} of ${valueFrom?.fieldRef.fieldPath}`).toBeTypeOf('string');
    return [name, found!.replace(container.volumeMounts[0].mountPath, folder)];
  });
  const { PATH = '' } = process.env;
  return {
    PATH,
    HOSTNAME: `${pod.job}-${index}`,
    JOB_COMPLETION_INDEX: String(index),
    ...Object.fromEntries(own),
  };
}

interface PodFacts {
  /** The Job's name, from which its pods' names are made. */
  readonly job: string;
  readonly service: string;
  /** Fields of the pod, as the downward API gives them. */
  readonly fields: Readonly<Record<string, string>>;
}

async function runPods(job: JobSpec, pod: PodFacts): Promise<readonly string[]> {
  const indices = Array.from({ length: job.completions }, (_, index) => index);
  const hostNames = indices.map((index) => `${pod.job}-${index}.${pod.service}`);
  using lan = createLan(job.completions, { hostNames });
  const [node, ...args] = job.template.spec.containers[0].command;
  expect(node).toBe('node');
  const results = await Promise.all(
    lan.hosts.map((host, index) =>
      programResult(
        host.fork(args[0]!, args.slice(1), {
          cwd: folder,
          stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
          env: podEnvironment(job, index, pod),
        }),
        LIMIT_MS,
      ),
    ),
  );
  expect(results.map(({ stderr }) => stderr).join('')).toBe('');
  return results.map(({ stdout }) => stdout.trim());
}

/** Checks what must hold for the Job of either file. */
function checkJob(job: JobSpec): void {
  expect(job.completionMode).toBe('Indexed');
  expect(job.parallelism).toBe(job.completions);
  const { containers, volumes } = job.template.spec;
  const [{ env, volumeMounts }] = containers;
  const value = (name: string) => env.find((one) => one.name === name)?.value;
  expect(value('WORLD_SIZE')).toBe(String(job.completions));
  expect(volumeMounts[0].name).toBe(volumes[0].name);
  // A comment of indexed-job.yaml has the command that makes the Secret: it gives the Secret's
  // name, and a key that is also the mounted file's name.
  const command = /generic (\S+) --from-literal=(\w+)=/.exec(
    readFileSync(new URL('kubernetes/indexed-job.yaml', examples), 'utf8'),
  );
  expect(volumes[0].secret.secretName).toBe(command?.[1]);
  expect(value('SHARDWEAVE_SECRET_FILE')).toBe(`${volumeMounts[0].mountPath}/${command?.[2]}`);
}

const problem = lanProblem();
const title = (text: string) => (problem === undefined ? text : `${text}, skipped: ${problem}`);

describe('indexed-job.yaml', () => {
  const [service, { metadata, spec, ...type }] = read('indexed-job.yaml');
  const { name } = metadata;

  it('has a Service that names its pods, and says what Kubernetes does not', () => {
    expect(type).toEqual({ apiVersion: 'batch/v1', kind: 'Job' });
    expect(service).toMatchObject({
      apiVersion: 'v1',
      kind: 'Service',
      spec: {
        clusterIP: 'None',
        publishNotReadyAddresses: true,
        selector: { 'batch.kubernetes.io/job-name': name },
      },
    });
    expect(spec.template.spec.subdomain).toBe(service.metadata.name);
    const { env } = spec.template.spec.containers[0];
    expect(env).toContainEqual({ name: 'SHARDWEAVE_SERVICE', value: service.metadata.name });
    checkJob(spec);
  });

  it.skipIf(problem !== undefined)(
    title('makes a group of its pods'),
    { timeout: LIMIT_MS + 5000 },
    async () => {
      const uid = "metadata.labels['batch.kubernetes.io/controller-uid']";
      const facts = { job: name, service: service.metadata.name, fields: { [uid]: 'b5e8' } };
      expect(await runPods(spec, facts)).toEqual(
        [0, 1, 2, 3].map((rank) => `rank ${rank} of 4 by indexed-job, attempt 0: sum 10`),
      );
    },
  );
});

describe('job-set.yaml', () => {
  const [{ metadata, spec, ...type }] = read('job-set.yaml');
  const [replicated] = spec.replicatedJobs;

  it('has one job of all ranks, and a failed rank fails the attempt', () => {
    expect(type).toEqual({ apiVersion: 'jobset.x-k8s.io/v1alpha2', kind: 'JobSet' });
    expect(spec.replicatedJobs).toHaveLength(1);
    expect(replicated.replicas).toBe(1);
    expect(replicated.template.spec.backoffLimit).toBe(0);
    expect(replicated.template.spec.template.spec.restartPolicy).toBe('Never');
    checkJob(replicated.template.spec);
  });

  it.skipIf(problem !== undefined)(
    title('makes a group of its pods, of a later attempt'),
    { timeout: LIMIT_MS + 5000 },
    async () => {
      const facts = {
        job: `${metadata.name}-${replicated.name}-0`,
        service: metadata.name,
        fields: {
          "metadata.annotations['jobset.sigs.k8s.io/jobset-name']": metadata.name,
          "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": '1',
        },
      };
      expect(await runPods(replicated.template.spec, facts)).toEqual(
        [0, 1, 2, 3].map((rank) => `rank ${rank} of 4 by jobset, attempt 1: sum 10`),
      );
    },
  );
});
