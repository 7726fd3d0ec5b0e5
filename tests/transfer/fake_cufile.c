/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for NVIDIA's cuFile where there is none: the same calls over pread and pwrite, into memory
 * of the host. LEHR_FAKE_CUFILE=refuse: its driver cannot be opened; =direct: it claims a kernel
 * driver for NVMe. */
#define _POSIX_C_SOURCE 200809L
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
  int error, cuda_error;
} Error;
typedef struct {
  int type;
  union {
    int fd;
    void* handle;
  } of;
  const void* operations;
} Descriptor;
typedef struct {
  struct {
    unsigned major_version, minor_version;
    size_t poll_threshold, max_direct_io;
    unsigned status_flags, control_flags;
  } driver;
  unsigned others[6];
} Properties;

Error cuFileDriverOpen(void);
Error cuFileDriverClose(void);
Error cuFileDriverGetProperties(Properties* properties);
Error cuFileHandleRegister(void** handle, Descriptor* descriptor);
void cuFileHandleDeregister(void* handle);
ssize_t cuFileRead(void* handle, void* base, size_t size, off_t file_offset, off_t memory_offset);
ssize_t cuFileWrite(void* handle, const void* base, size_t size, off_t file_offset,
                    off_t memory_offset);

static int asked(const char* what) {
  const char* mode = getenv("LEHR_FAKE_CUFILE");
  return mode != NULL && strcmp(mode, what) == 0;
}

Error cuFileDriverOpen(void) {
  Error error = {asked("refuse") ? 5001 : 0, 0};
  return error;
}

Error cuFileDriverClose(void) {
  Error none = {0, 0};
  return none;
}

Error cuFileDriverGetProperties(Properties* properties) {
  Error none = {0, 0};
  memset(properties, 0, sizeof *properties);
  if (asked("direct")) {
    properties->driver.major_version = 2;
    properties->driver.status_flags = 1U << 4;
  }
  return none;
}

Error cuFileHandleRegister(void** handle, Descriptor* descriptor) {
  Error error = {0, 0};
  int* fd = malloc(sizeof *fd);
  if (fd == NULL || descriptor->type != 1) {
    free(fd);
    error.error = 5022;
    return error;
  }
  *fd = descriptor->of.fd;
  *handle = fd;
  return error;
}

void cuFileHandleDeregister(void* handle) { free(handle); }

ssize_t cuFileRead(void* handle, void* base, size_t size, off_t file_offset, off_t memory_offset) {
  return pread(*(int*)handle, (char*)base + memory_offset, size, file_offset);
}

ssize_t cuFileWrite(void* handle, const void* base, size_t size, off_t file_offset,
                    off_t memory_offset) {
  return pwrite(*(int*)handle, (const char*)base + memory_offset, size, file_offset);
}
