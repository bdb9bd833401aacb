// What forming a job needs of where it runs.

import type { SocketPlatform } from '../../sockets/socket-platform.js';
import type { HeartbeatSender } from './heartbeat/heartbeat-sender.js';

export interface WsPlatform {
  readonly sockets: SocketPlatform;
  /**
   * Signs of life that don't depend on the rank's own thread; undefined where there is no such
   * thing.
   */
  startHeartbeats(heartbeatMs: number): Promise<HeartbeatSender | undefined>;
}
