/**
 * @file skep/skep.h
 * All of Skep's public API: nodes that host experts, clients that call them, tensors, files.
 *
 * NULL for options, for a text, a list or an entry of one is SKEP_INVALID_ARGUMENT with a sentence
 * that names the argument, where it has no meaning of its own that is told. A handle is one that a
 * call here has given and no _free has taken; NULL is none.
 *
 * fork(): a node, a client, a tracker and what is made by them live in threads of the process that
 * has made them, and a child has none of these. In the child of a fork no handle may be used, nor
 * freed: it ends with _exit() or goes on to exec(). A process that is to have handles of its own is
 * forked before any is made.
 */
#ifndef SKEP_SKEP_H
#define SKEP_SKEP_H

#include <skep/beam.h>
#include <skep/client.h>
#include <skep/expert.h>
#include <skep/log.h>
#include <skep/moe.h>
#include <skep/node.h>
#include <skep/plugin.h>
#include <skep/safetensors.h>
#include <skep/status.h>
#include <skep/tensor.h>
#include <skep/tracker.h>
#include <skep/version.h>
#include <skep/watch.h>

#endif
